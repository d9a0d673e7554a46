"""Where memory in use was highest: over a run, and in each of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import Breakdown, Timeline, breakdowns_at, trace_total
from memfit.ledger import Category, EventKind, Ledger, Phase
from memfit.ledger.schema import Array

INIT = -1
"""The step number of what precedes the first step."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most memory that was in use on a device at one moment."""

    device: str
    event: int
    """The event that brought it there; -1 where the device was never used."""
    time_ns: int
    size_bytes: int
    step: int
    """The step it fell in, ``INIT`` before the first."""
    phase: Phase | None
    """What ran, ``None`` outside all phases."""
    module: str
    """The path of the module that ran, empty outside all modules."""
    breakdown: Breakdown
    """Sums to ``size_bytes``."""


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """A step's peak, which is at least what the step began with, and what was left in use when it ended."""

    step: int
    peak: Peak
    end_bytes: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """A category's part of a breakdown."""

    category: Category
    size_bytes: int
    fraction: float


def find_peak(ledger: Ledger, device: int) -> Peak:
    """The first moment at which most memory was in use."""
    timeline = trace_total(ledger, device)
    return _peaks_at(ledger, device, timeline, timeline.events[[np.argmax(timeline.totals)]])[0]


def find_step_peaks(ledger: Ledger, device: int) -> list[StepPeak]:
    """The peak of initialisation, then of every step."""
    timeline = trace_total(ledger, device)
    first = np.concatenate(([-1], ledger.step_starts))
    last = np.append(first[1:] - 1, len(ledger.events) - 1)
    peaks = _peaks_at(ledger, device, timeline, timeline.highest_between(first, last))
    ends = timeline.at(last).tolist()
    return [
        StepPeak(step=step, peak=peak, end_bytes=end) for step, (peak, end) in enumerate(zip(peaks, ends, strict=True), start=INIT)
    ]


def breakdown_at(ledger: Ledger, event: int, device: int) -> Breakdown:
    """What was in use right after an event, by category."""
    return breakdowns_at(ledger, np.array([event]), device)[0]


def current_breakdown(ledger: Ledger, device: int) -> Breakdown:
    """What is in use when the ledger ends, by category."""
    return breakdown_at(ledger, len(ledger.events) - 1, device)


def share_out(breakdown: Breakdown) -> list[Share]:
    """The categories of a breakdown with their fraction of it, the largest first."""
    total = sum(breakdown.values())
    shares = [Share(category=category, size_bytes=size, fraction=size / total) for category, size in breakdown.items()]
    return sorted(shares, key=lambda share: -share.size_bytes)


def _peaks_at(ledger: Ledger, device: int, timeline: Timeline, events: Array) -> list[Peak]:
    sizes = timeline.at(events).tolist()
    times = np.append(ledger.events.time_ns, 0)[events].tolist()
    steps = (np.searchsorted(ledger.step_starts, events, side="right") - 1).tolist()
    phases = np.append(ledger.scopes.phase.astype(np.int64), -1)
    modules = np.append(ledger.scopes.module, -1)
    scopes = running_at(ledger, events)
    breakdowns = breakdowns_at(ledger, events, device)
    return [
        Peak(
            device=ledger.devices[device].name,
            event=event,
            time_ns=times[i],
            size_bytes=sizes[i],
            step=steps[i],
            phase=Phase(phases[scopes[i]]) if phases[scopes[i]] >= 0 else None,
            module=ledger.module_path(modules[scopes[i]]),
            breakdown=breakdowns[i],
        )
        for i, event in enumerate(events.tolist())
    ]


def running_at(ledger: Ledger, events: Array) -> Array:
    """Per event: the innermost scope it fell in, -1 outside all: the scope last entered, or the one around the scope last left."""
    kind = ledger.events.kind
    marks = np.flatnonzero((kind == EventKind.ENTER) | (kind == EventKind.EXIT))
    scope = ledger.events.subject[marks]
    running = np.where(kind[marks] == EventKind.ENTER, scope, ledger.scopes.parent[scope])
    return np.append(running, -1)[np.searchsorted(marks, events, side="right") - 1]
