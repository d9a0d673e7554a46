"""The current state of a run, on one rank or all: memory in use, peak, headroom and trend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.analysis.peaks import current_breakdown, find_peak
from memfit.analysis.report import plain
from memfit.analysis.timeline import Breakdown
from memfit.ledger import INIT, Ledger
from memfit.ledger.schema import Array, Levels
from memfit.ledger.storage import RUNNING

NUM_ROWS: Final = 200
"""The number of rows that the trend is computed from."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """One rank of a run, on its main device."""

    rank: int
    device: str
    step: int
    """The last finished step, ``INIT`` before the first."""
    allocated_bytes: int
    reserved_bytes: int | None
    """``None`` where it was not counted."""
    unused_bytes: int | None
    """Reserved, and not in use."""
    peak_bytes: int
    capacity_bytes: int | None
    growth_per_step: float | None
    """Growth per step of the memory in use at the end of a step; ``None`` with too few steps."""
    breakdown: Breakdown
    """What is in use by category, as of the last step that was kept in full."""
    breakdown_step: int
    alarms: tuple[str, ...]
    problem: str
    """Why the ledger is incomplete; empty while the run goes on."""
    is_running: bool

    @property
    def headroom_bytes(self) -> int | None:
        """Free memory of the device if this is its only process."""
        held = self.reserved_bytes if self.reserved_bytes is not None else self.peak_bytes
        return None if self.capacity_bytes is None else self.capacity_bytes - held

    @property
    def steps_left(self) -> int | None:
        """Steps until the device is full at this rate; ``None`` if memory does not grow."""
        if not self.growth_per_step or self.growth_per_step <= 0 or self.headroom_bytes is None:
            return None
        return int(max(self.headroom_bytes + (self.unused_bytes or 0), 0) / self.growth_per_step)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found | {"headroom_bytes": self.headroom_bytes, "steps_left": self.steps_left}


def find_status(ledger: Ledger) -> Status:
    """The state of a run, from its ledger."""
    device = ledger.main_device
    if device is None:
        return _nothing(ledger)
    rows = _rows_of(ledger.levels, device)
    kept = int(ledger.step_numbers.max(initial=INIT))
    now = current_breakdown(ledger, device)
    has_levels = len(rows) > 0
    return Status(
        rank=ledger.info.rank,
        device=ledger.devices[device].name,
        step=int(rows.last_step[-1]) if has_levels else kept,
        allocated_bytes=int(rows.allocated[-1]) if has_levels else sum(now.values()),
        reserved_bytes=int(rows.reserved[-1]) if has_levels else None,
        unused_bytes=int(rows.reserved[-1] - rows.active[-1]) if has_levels else None,
        peak_bytes=max(int(rows.peak.max(initial=0)), find_peak(ledger, device).size_bytes),
        capacity_bytes=ledger.info.capacity_bytes or None,
        growth_per_step=_growth(rows),
        breakdown=now,
        breakdown_step=kept,
        alarms=ledger.info.alarms,
        **_ending(ledger),
    )


def worst_first(statuses: Iterable[Status]) -> list[Status]:
    """The ranks of a run, the one with the least room left first."""

    def room(status: Status) -> tuple[float, int]:
        left = status.headroom_bytes
        return (float("inf") if left is None else left), -status.peak_bytes

    return sorted(statuses, key=room)


def _rows_of(levels: Levels, device: int) -> Levels:
    here = np.flatnonzero(levels.device == device)
    columns: dict[str, Array] = {name: column[here] for name, column in levels.columns().items()}
    return Levels(**columns)


def _growth(rows: Levels) -> float | None:
    """Computed from the minima of the first and the last quarter of the latest rows, so that fluctuations do not count."""
    steps, allocated = rows.last_step[-NUM_ROWS:], rows.allocated[-NUM_ROWS:]
    inside = steps >= 0
    steps, allocated = steps[inside], allocated[inside]
    quarter = len(steps) // 4
    if quarter < 5:
        return None
    first, last = int(np.argmin(allocated[:quarter])), len(steps) - quarter + int(np.argmin(allocated[-quarter:]))
    return float(allocated[last] - allocated[first]) / max(1, int(steps[last] - steps[first]))


def _ending(ledger: Ledger) -> dict[str, Any]:
    is_running = ledger.info.problem == RUNNING
    return {"problem": "" if is_running else ledger.info.problem, "is_running": is_running}


def _nothing(ledger: Ledger) -> Status:
    return Status(
        rank=ledger.info.rank,
        device="",
        step=INIT,
        allocated_bytes=0,
        reserved_bytes=None,
        unused_bytes=None,
        peak_bytes=0,
        capacity_bytes=None,
        growth_per_step=None,
        breakdown={},
        breakdown_step=INIT,
        alarms=ledger.info.alarms,
        **_ending(ledger),
    )
