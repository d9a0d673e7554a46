"""The phases of a run in order: forward, backward, optimizer step, and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import trace_total
from memfit.ledger import Ledger, Phase
from memfit.ledger.columns import steps_at
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True)
class PhaseSpan:
    """One phase from beginning to end. Consecutive scopes of one phase within a step are merged."""

    step: int
    """``INIT`` before the first."""
    phase: Phase
    first_event: int
    last_event: int
    peak_bytes: int
    """The device's peak between them."""
    end_bytes: int
    """Memory in use at the end."""


def trace_phases(ledger: Ledger, device: int) -> list[PhaseSpan]:
    """The outermost phases of a run, with their memory on a device."""
    outer = np.flatnonzero(ledger.scopes.parent == -1)
    first = ledger.scope_enter[outer]
    outer, first = outer[np.argsort(first)], np.sort(first)
    last = np.minimum(ledger.scope_exit[outer], len(ledger.events) - 1)
    phases = ledger.scopes.phase[outer].astype(np.int64)
    steps = steps_at(ledger, first)
    starts = _starts_of_runs(phases, steps)
    first, phases, steps = first[starts], phases[starts], steps[starts]
    last = np.maximum.reduceat(last, starts) if len(starts) else last
    timeline = trace_total(ledger, device)
    columns = (steps, phases, first, last, timeline.at(timeline.highest_between(first, last)), timeline.at(last))
    return [
        PhaseSpan(step=step, phase=Phase(phase), first_event=begin, last_event=end, peak_bytes=peak, end_bytes=left)
        for step, phase, begin, end, peak, left in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _starts_of_runs(phases: Array, steps: Array) -> Array:
    """The positions at which the phase or the step changes."""
    if not len(phases):
        return np.empty(0, dtype=np.int64)
    changes = (np.diff(phases) != 0) | (np.diff(steps) != 0)
    return np.flatnonzero(np.concatenate(([True], changes)))
