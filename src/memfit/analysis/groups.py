"""Modules that repeat, as one line: ``layers.*.attention.wq`` for all layers of a model."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.analysis.modules import ModuleStats


@dataclass(frozen=True, kw_only=True)
class ModuleGroup:
    """Modules whose paths differ only in the numbers in them."""

    path: str
    """With a star for each number; the module's own path where the group is a single module."""
    num_modules: int
    bytes_at_peak: int
    """What they owned when the device was at its peak, submodules aside."""


def group_modules(modules: list[ModuleStats]) -> list[ModuleGroup]:
    """The groups that owned anything at the peak, the largest first."""
    members: dict[str, list[ModuleStats]] = {}
    for module in modules:
        if module.own_bytes_at_peak:
            members.setdefault(starred(module.path), []).append(module)
    groups = [
        ModuleGroup(
            path=path if len(group) > 1 else group[0].path,
            num_modules=len(group),
            bytes_at_peak=sum(module.own_bytes_at_peak for module in group),
        )
        for path, group in members.items()
    ]
    return sorted(groups, key=lambda group: -group.bytes_at_peak)


def starred(path: str) -> str:
    """The path with a star for each number in it."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))
