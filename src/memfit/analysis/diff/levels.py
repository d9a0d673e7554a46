"""How high memory went in each phase of each step, in two runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.diff.compared import Compared
from memfit.analysis.timeline import trace_total
from memfit.ledger import INIT, Ledger, Phase
from memfit.ledger.columns import running_at, steps_at


@dataclass(frozen=True, kw_only=True)
class PhaseLevel(Compared):
    """The most in use while one phase of one step ran, where it is not the same in both runs."""

    step: int
    """``INIT`` before the first."""
    phase: Phase | None
    """The innermost, ``None`` outside all."""


_NO_PHASE = -1


def compare_levels(before: Ledger, device_before: int | None, after: Ledger, device_after: int | None) -> tuple[PhaseLevel, ...]:
    """The levels that differ, of the steps and phases that both runs have, in order."""
    low, high = _levels(before, device_before), _levels(after, device_after)
    return tuple(
        PhaseLevel(
            step=step,
            phase=Phase(phase) if phase != _NO_PHASE else None,
            before_bytes=low[step, phase],
            after_bytes=high[step, phase],
        )
        for step, phase in sorted(low.keys() & high.keys())
        if low[step, phase] != high[step, phase]
    )


def _levels(ledger: Ledger, device: int | None) -> dict[tuple[int, int], int]:
    """By step and phase: the most in use right after any of their events."""
    if device is None or not len(ledger.events):
        return {}
    events = np.arange(len(ledger.events))
    phase = np.append(ledger.scopes.phase.astype(np.int64), _NO_PHASE)[running_at(ledger, events)]
    step = steps_at(ledger, events)
    cell = (step - INIT) * (len(Phase) + 1) + phase - _NO_PHASE
    present, which = np.unique(cell, return_inverse=True)
    highest = np.zeros(len(present), dtype=np.int64)
    np.maximum.at(highest, which, trace_total(ledger, device).at(events))
    width = len(Phase) + 1
    return {(c // width + INIT, c % width + _NO_PHASE): h for c, h in zip(present.tolist(), highest.tolist(), strict=True)}
