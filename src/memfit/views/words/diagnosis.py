"""What ``memfit doctor`` prints: plain lines, to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from memfit.diagnosis import Diagnosis


def diagnosis_lines(found: Diagnosis, *, every_patch: bool = False) -> Iterator[str]:
    """One line for each thing; with ``every_patch`` also everything that is replaced in torch while a run is predicted."""
    oldest, newest = found.supported_torch
    supported = "supported" if found.is_supported else "NOT supported"
    yield f"memfit     {found.memfit}, Python {found.python}, {found.platform}"
    yield f"torch      {found.packages['torch']}: {supported} (memfit is tested with torch {oldest} to {newest})"
    yield f"GPU        {', '.join(found.gpus) or 'none: predictions need none'}"
    there = [f"{name} {version}" for name, version in found.packages.items() if version and name != "torch"]
    absent = [name for name, version in found.packages.items() if not version]
    yield f"packages   {', '.join(there)}{'; not installed: ' + ', '.join(absent) if absent else ''}"
    slower = "" if found.engine == "C" else ": slower. Install a C compiler and memfit again for the fast one"
    yield f"allocator  simulated in {found.engine}{slower}"
    num_parts = sum(len(part.found) for part in found.parts)
    lacking = [part for part in found.parts if part.missing]
    yield f"parts      {num_parts} private parts of torch are where memfit knows them" + (", some are not:" if lacking else "")
    for part in lacking:
        yield f"           {part.missing} is missing (torch_compat/{part.file}.py needs it)"
    if found.problem:
        yield f"problem    {found.problem}"
    num_recorder = sum(patch.who == "the recorder" for patch in found.replaced)
    hint = "" if every_patch else "; memfit doctor --patches lists them"
    yield f"patches    {num_recorder} places in torch while a run is tracked, {len(found.replaced)} while one is predicted{hint}"
    if every_patch:
        yield from _patch_lines(found)


def _patch_lines(found: Diagnosis) -> Iterator[str]:
    def reason(index: int) -> tuple[str, str]:
        return found.replaced[index].who, found.replaced[index].why

    for (who, why), group in groupby(sorted(range(len(found.replaced)), key=reason), key=reason):
        yield f"  {who}: {why}"
        for index in group:
            yield f"    {found.replaced[index].place}"
