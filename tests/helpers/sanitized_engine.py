"""The engine in C, built under AddressSanitizer and UndefinedBehaviorSanitizer with a small driver around it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np

from helpers import ROOT
from helpers.extreme_runs import ExtremeRun
from memfit.allocator.engine import NO_LIMIT, Outcome, Rules, compiling

DRIVER = ROOT / "tests" / "allocator" / "engine" / "sanitized_driver.c"
FLAGS = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_NAMES = ("block", "size", "segment", "address", "free_list")


def compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build_driver(folder: Path, source: Path = compiling.HERE / "csrc") -> Path | str:
    """The program; or, as text, why there is none: no compiler, or one without sanitizers."""
    found = compiler()
    if found is None:
        return "there is no C compiler"
    empty, made = folder / "empty.c", folder / "driver"
    empty.write_text("int main(void) { return 0; }\n")
    tried = subprocess.run([found, *FLAGS, str(empty), "-o", str(made)], capture_output=True, text=True, check=False)
    if tried.returncode or subprocess.run([made], check=False).returncode:
        return f"{found} cannot build programs with sanitizers: {tried.stderr.strip()[-200:]}"
    subprocess.run([found, *FLAGS, f"-I{source}", str(DRIVER), "-o", str(made)], check=True)
    return made


def serve(driver: Path, runs: Sequence[ExtremeRun], *, refuse_growth: bool = False) -> list[Outcome]:
    """What the program made of the runs; ``CalledProcessError`` with what a sanitizer said."""
    cases, outcomes = driver.with_name("cases"), driver.with_name("outcomes")
    cases.write_bytes(b"".join(map(_encoded, runs)))
    environment = os.environ | {"ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [str(driver), str(cases), str(outcomes), *(["fail"] if refuse_growth else [])]
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    numbers = np.fromfile(outcomes, dtype=np.int64)
    found: list[Outcome] = []
    for run in runs:
        outcome, numbers = _decoded(numbers, run)
        found.append(outcome)
    assert not len(numbers)
    return found


def _encoded(run: ExtremeRun) -> bytes:
    prepared = run.prepared
    rules = [int(getattr(run.rules, field.name)) for field in fields(Rules)]
    stretches = prepared.stretches if run.rules.collect_above == NO_LIMIT else ()
    counts = [len(prepared.kind), prepared.num_blocks, len(prepared.free_lists), prepared.top_address, len(stretches)]
    columns = [prepared.kind.astype(np.int64), *(getattr(prepared, name) for name in _NAMES)]
    columns += [np.array([row[i] for row in prepared.free_lists], dtype=np.int64) for i in (1, 2)]
    columns.append(np.array([astuple(stretch) for stretch in stretches], dtype=np.int64).ravel())
    return np.concatenate([np.array([*rules, *counts], dtype=np.int64), *columns]).tobytes()


def _decoded(numbers: np.ndarray, run: ExtremeRun) -> tuple[Outcome, np.ndarray]:
    (failed, num_done, retries, syncs, rejections, granted, refused, num_rows), rest = numbers[:8], numbers[8:]
    assert not failed, run.said
    sizes = (run.prepared.num_blocks, run.prepared.num_blocks, 2 * num_done, 5 * num_rows)
    block_bytes, completed, num_inactive, log, rest = np.split(rest, np.cumsum(sizes))
    return Outcome(
        num_done=int(num_done),
        block_bytes=block_bytes,
        completed=completed,
        num_inactive=num_inactive.reshape(-1, 2),
        segment_log=log.reshape(-1, 5),
        num_alloc_retries=int(retries),
        num_sync_all_streams=int(syncs),
        num_oom_rejections=int(rejections),
        most_granted=int(granted),
        least_refused=int(refused),
    ), rest
