"""What two runs differ in: their peaks, what these are made of, and how high each phase of each step went.

::

    before ──> blocks at its peak ─┐   by category, module, phase and op: what is not the same in both
                                   ├─> each list's changes sum to the change of the peak
    after ───> blocks at its peak ─┘

Each run is looked at on its main device. A predicted run and a measured one are compared like any two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from memfit.allocator import replay, requests_from_ledger
from memfit.analysis.diff.blocks import BlockChange, Change, change_of_blocks, changes_by, hold_at
from memfit.analysis.diff.compared import Compared
from memfit.analysis.diff.levels import PhaseLevel, compare_levels
from memfit.analysis.peaks import Peak, find_peak
from memfit.analysis.report import plain
from memfit.ledger import Device, Ledger, RunInfo
from memfit.ledger.schema import Slack
from memfit.units import Allowance


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs."""

    info: RunInfo
    num_steps: int
    peak: Peak | None
    """On its main device; ``None`` where it has none."""


@dataclass(frozen=True, kw_only=True)
class Figure(Compared):
    """A peak of the whole device. A run without an allocator has only what was in use."""

    name: str
    """``in use``: what tensors asked for; ``allocated`` and ``reserved``: what CUDA's allocator made of it."""


@dataclass(frozen=True, kw_only=True)
class Diff:
    """Everything that is not the same, the largest change first. Each of the lists but ``levels`` sums to the first figure."""

    before: Side
    after: Side
    figures: tuple[Figure, ...]
    """All of them, the same or not."""
    categories: tuple[Change, ...]
    modules: tuple[Change, ...]
    """The name is empty for what no module owns."""
    phases: tuple[Change, ...]
    """Those in which the blocks were born; the name is empty outside all."""
    ops: tuple[Change, ...]
    blocks: tuple[BlockChange, ...]
    """What is behind it all: blocks of one category, module, phase and op."""
    levels: tuple[PhaseLevel, ...]
    """In order of steps."""

    @property
    def empty(self) -> bool:
        """Are both the same, as far as this tells?"""
        parts = (self.categories, self.modules, self.phases, self.ops, self.blocks, self.levels)
        return not any(parts) and not any(figure.change_bytes for figure in self.figures)

    def grown_over(self, allowance: Allowance) -> tuple[Figure, ...]:
        """The figures that grew by more than is allowed: what was allocated and reserved, or in use where no allocator is."""
        counted = self.figures[1:] or self.figures
        return tuple(figure for figure in counted if figure.change_bytes > allowance.of(figure.before_bytes))

    @property
    def headline(self) -> Figure:
        """The figure that people see: what was allocated, or in use where no allocator is."""
        return self.figures[1] if len(self.figures) > 1 else self.figures[0]

    @property
    def compares_a_prediction(self) -> bool:
        return {self.before.info.source, self.after.info.source} == {"predicted", "measured"}

    @property
    def prediction_error(self) -> Figure:
        """The headline from what was measured to what was predicted, whichever was given first."""
        figure = self.headline
        if self.after.info.source == "predicted":
            return figure
        return replace(figure, before_bytes=figure.after_bytes, after_bytes=figure.before_bytes)

    def to_json(self) -> dict[str, Any]:
        """For programs, in plain dictionaries, lists, strings and numbers."""
        found: dict[str, Any] = _with_changes(plain(self))
        return found


def diff_ledgers(before: Ledger, after: Ledger) -> Diff:
    """What it takes to get from ``before`` to ``after``.

    A run that was recorded from the allocator's history knows no operators, and what the allocator gave on top of its blocks:
    neither is compared with a run that does not have it.
    """
    if bool(len(before.slack)) != bool(len(after.slack)):
        before, after = (replace(ledger, slack=Slack.from_rows([])) for ledger in (before, after))
    by_op = before.info.witness == after.info.witness
    devices = before.main_device, after.main_device
    sides = _side(before, devices[0]), _side(after, devices[1])
    held = (
        hold_at(before, devices[0], sides[0].peak, by_op=by_op),
        hold_at(after, devices[1], sides[1].peak, by_op=by_op),
    )
    return Diff(
        before=sides[0],
        after=sides[1],
        figures=tuple(_figures(before, after, *sides)),
        categories=changes_by(*held, lambda kind: kind.category.label),
        modules=changes_by(*held, lambda kind: kind.module, starring=True),
        phases=changes_by(*held, lambda kind: kind.phase.label if kind.phase is not None else ""),
        ops=changes_by(*held, lambda kind: kind.op) if by_op else (),
        blocks=change_of_blocks(*held),
        levels=compare_levels(before, devices[0], after, devices[1]),
    )


def _side(ledger: Ledger, device: int | None) -> Side:
    peak = None if device is None else find_peak(ledger, device)
    return Side(info=ledger.info, num_steps=len(ledger.step_starts), peak=peak)


def _figures(before: Ledger, after: Ledger, side_before: Side, side_after: Side) -> list[Figure]:
    sizes = [side.peak.size_bytes if side.peak else 0 for side in (side_before, side_after)]
    found = [Figure(name="in use", before_bytes=sizes[0], after_bytes=sizes[1])]
    devices = [side.peak.device if side.peak else "" for side in (side_before, side_after)]
    if all(Device(name=device).is_cuda for device in devices):
        runs = [replay(requests_from_ledger(ledger, device)) for ledger, device in zip((before, after), devices, strict=True)]
        found += [
            Figure(name="allocated", before_bytes=runs[0].peak_allocated, after_bytes=runs[1].peak_allocated),
            Figure(name="reserved", before_bytes=runs[0].peak_reserved, after_bytes=runs[1].peak_reserved),
        ]
    return found


def _with_changes(value: Any) -> Any:
    """Spells out the change wherever a before and an after are."""
    if isinstance(value, list):
        return [_with_changes(item) for item in value]
    if not isinstance(value, dict):
        return value
    spelled = {key: _with_changes(item) for key, item in value.items()}
    if "before_bytes" in spelled:
        spelled["change_bytes"] = spelled["after_bytes"] - spelled["before_bytes"]
    return spelled
