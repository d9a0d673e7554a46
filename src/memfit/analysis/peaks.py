"""The peaks of a run and of each of its steps, and the operators behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import Breakdown, MemoryTimeline, breakdowns_at, trace_total
from memfit.ledger import INIT, Category, Ledger, Moment, moments_at
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True)
class Peak(Moment):
    """The moment at which most memory was in use on a device."""

    device: str
    event: int
    """The event that reached it; -1 if the device was never used."""
    time_ns: int
    size_bytes: int
    breakdown: Breakdown
    """Sums to ``size_bytes``."""


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """A step's peak, which is at least the memory at its beginning, and the memory in use at its end."""

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
    """The peak of a run; the first of several equal ones."""
    timeline = trace_total(ledger, device)
    return _peaks_at(ledger, device, timeline, timeline.events[[np.argmax(timeline.totals)]])[0]


def find_step_peaks(ledger: Ledger, device: int) -> list[StepPeak]:
    """The peak of initialisation, then of every step."""
    timeline = trace_total(ledger, device)
    first = np.concatenate(([-1], ledger.step_starts))
    last = np.append(first[1:] - 1, len(ledger.events) - 1)
    peaks = _peaks_at(ledger, device, timeline, timeline.highest_between(first, last))
    numbers, ends = [INIT, *ledger.step_numbers.tolist()], timeline.at(last).tolist()
    return [StepPeak(step=step, peak=peak, end_bytes=end) for step, peak, end in zip(numbers, peaks, ends, strict=True)]


def breakdown_at(ledger: Ledger, event: int, device: int) -> Breakdown:
    """Memory in use right after an event, by category."""
    return breakdowns_at(ledger, np.array([event]), device)[0]


def current_breakdown(ledger: Ledger, device: int) -> Breakdown:
    """Memory in use at the end of the ledger, by category."""
    return breakdown_at(ledger, len(ledger.events) - 1, device)


def share_out(breakdown: Breakdown) -> list[Share]:
    """The categories of a breakdown with their fractions, largest first."""
    total = sum(breakdown.values())
    shares = [Share(category=category, size_bytes=size, fraction=size / total) for category, size in breakdown.items()]
    return sorted(shares, key=lambda share: -share.size_bytes)


def _peaks_at(ledger: Ledger, device: int, timeline: MemoryTimeline, events: Array) -> list[Peak]:
    sizes = timeline.at(events).tolist()
    times = np.append(ledger.events.time_ns, 0)[events].tolist()
    moments = moments_at(ledger, events)
    breakdowns = breakdowns_at(ledger, events, device)
    return [
        Peak(
            device=ledger.devices[device].name,
            event=event,
            time_ns=times[i],
            size_bytes=sizes[i],
            step=moments[i].step,
            phase=moments[i].phase,
            module=moments[i].module,
            breakdown=breakdowns[i],
        )
        for i, event in enumerate(events.tolist())
    ]


@dataclass(frozen=True, kw_only=True)
class OpShare:
    """One operator's part of the memory in use at a moment."""

    op: str
    num_blocks: int
    size_bytes: int


def bytes_by_op(ledger: Ledger, event: int, device: int) -> list[OpShare]:
    """Memory in use on a device right after an event by operator, largest first."""
    held = ledger.block_bytes_at(event)
    live = np.flatnonzero((held > 0) & (ledger.blocks.device == device))
    ops, which = np.unique(ledger.blocks.op[live], return_inverse=True)
    sizes = np.zeros(len(ops), dtype=np.int64)
    np.add.at(sizes, which, held[live])
    columns = (ops, np.bincount(which, minlength=len(ops)), sizes)
    shares = [
        OpShare(op=ledger.strings[op], num_blocks=count, size_bytes=size)
        for op, count, size in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return sorted(shares, key=lambda share: -share.size_bytes)
