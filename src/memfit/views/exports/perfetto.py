"""A trace in Chrome's trace event format, which Perfetto and chrome://tracing open.

::

    steps             | init |           step 0            |        step 1       ...
    phases                   | forward | backward | optimizer |
    what ran                 | layers.0 | layers.1 | ...
    default stream                                         | layers.0 | | layers.1 |   what each stream did in the last step,
    communication                                               | _allgather_base_ |   of a prediction
    cuda:0 in use     a counter; one more for what is reserved, and one for each category

A measured run is drawn over its own clock, a predicted one over the phantom's: when the GPU would be done with what was issued. A
prediction of an older memfit has none (what its ledger says is how long predicting took), so there one event is one microsecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from memfit.allocator import replay, requests_from_ledger
from memfit.analysis import find_peak, trace_categories, trace_lanes, trace_phases, trace_total
from memfit.analysis.lanes import Lane
from memfit.analysis.timeline import MemoryTimeline
from memfit.ledger import INIT, Ledger, Phase, WorkKind
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.words.moments import name_lane, name_work

NS_PER_US = 1_000
STEPS_TRACK, PHASES_TRACK, FIRST_SCOPE_TRACK = 1, 2, 3
FIRST_STREAM_TRACK = 1_000_000
"""Below all tracks of scopes, of which there are a few for each thread."""

Event = dict[str, Any]


def write_trace(ledger: Ledger) -> bytes:
    ledger.check()
    return json.dumps(
        {
            "displayTimeUnit": "ms",
            "otherData": {"source": printable(ledger.info.source), "clock": _clock_name(ledger)},
            "traceEvents": [*_names(ledger), *_slices(ledger), *_counters(ledger), *_peaks(ledger)],
        }
    ).encode()


# -- time and place ----------------------------------------------------------------------------------------------------------


def _clock_name(ledger: Ledger) -> str:
    if not ledger.info.has_clock:
        return "one event is one microsecond"
    return "predicted time" if ledger.info.source == "predicted" else "time since the recording began"


def _times_ns(ledger: Ledger) -> list[int]:
    """Per event, and once more for the end: its time, which never falls."""
    if not ledger.info.has_clock:
        return list(range(0, NS_PER_US * (len(ledger.events) + 1), NS_PER_US))
    times: list[int] = np.maximum.accumulate(ledger.events.time_ns).tolist()
    return [*times, max(times[-1] if times else 0, int(ledger.work.end_ns.max(initial=0)))]


def _event(ledger: Ledger, phase: str, name: str, time_ns: int, track: int = 0, **more: Any) -> Event:
    # Processes are counted from 1: viewers take number 0 for the idle process.
    return {"ph": phase, "name": name, "ts": time_ns / NS_PER_US, "pid": ledger.info.rank + 1, "tid": track, **more}


def _names(ledger: Ledger) -> Iterator[Event]:
    info = ledger.info
    process = f"{printable(info.source)}, rank {info.rank} of {info.world_size} ({_clock_name(ledger)})"
    yield _event(ledger, "M", "process_name", 0, args={"name": process})
    tracks = {STEPS_TRACK: "steps", PHASES_TRACK: "phases"} | dict.fromkeys(sorted(set(_tracks(ledger))), "what ran")
    tracks |= {track: name_lane(lane) for track, lane in _lanes(ledger)}
    for track, name in tracks.items():
        yield _event(ledger, "M", "thread_name", 0, track, args={"name": name})


# -- slices ------------------------------------------------------------------------------------------------------------------


def _slice(ledger: Ledger, name: str, track: int, begin_ns: int, end_ns: int, **more: Any) -> Event:
    return _event(ledger, "X", name, begin_ns, track, dur=(end_ns - begin_ns) / NS_PER_US, **more)


def _slices(ledger: Ledger) -> Iterator[Event]:
    yield from _steps(ledger)
    yield from _phases(ledger)
    yield from _scopes(ledger)
    yield from _streams(ledger)


def _steps(ledger: Ledger) -> Iterator[Event]:
    times = _times_ns(ledger)
    bounds = [0, *ledger.step_starts.tolist(), len(ledger.events)]
    for step, (first, end) in zip([INIT, *ledger.step_numbers.tolist()], pairwise(bounds), strict=True):
        yield _slice(ledger, f"step {step}" if step >= 0 else "init", STEPS_TRACK, times[first], times[end], cat="step")


def _phases(ledger: Ledger) -> Iterator[Event]:
    """The outermost phases, each until the next at the latest."""
    times, spans = _times_ns(ledger), trace_phases(ledger, 0) if ledger.devices else []
    starts = [*(span.first_event for span in spans), len(ledger.events)]
    for span, (start, following) in zip(spans, pairwise(starts), strict=True):
        end = min(span.last_event, following)
        yield _slice(ledger, span.phase.label, PHASES_TRACK, times[start], times[end], cat="phase")


def _scopes(ledger: Ledger) -> Iterator[Event]:
    times, sizes = _times_ns(ledger), [*ledger.events.size.tolist(), 0]
    columns = (ledger.scopes.phase, ledger.scopes.module, ledger.scope_enter, ledger.scope_exit)
    for track, phase, module, first, end in zip(_tracks(ledger), *(column.tolist() for column in columns), strict=True):
        label = Phase(phase).label
        name = printable(ledger.module_path(module)) if module >= 0 else label
        args = {"phase": label, "bytes in": sizes[first], "bytes out": sizes[end]}
        if module >= 0:
            args["class"] = printable(ledger.strings[ledger.modules.kind[module]])
        yield _slice(ledger, name, track, times[first], times[end], cat=label, args=args)


def _streams(ledger: Ledger) -> Iterator[Event]:
    """What each stream did, each slice as long as it would have taken."""
    for track, lane in _lanes(ledger):
        work = lane.work
        columns = (work.kind, work.module, work.op, work.begin_ns, work.end_ns, work.busy_ns, work.num_kernels)
        for kind, module, op, begin, end, busy, kernels in zip(*(column.tolist() for column in columns), strict=True):
            label, operator = WorkKind(kind).label, printable(ledger.strings[op])
            path = printable(ledger.module_path(module))
            args = {"kind": label, "module": path, "most of it": operator, "kernels": kernels, "busy us": busy / NS_PER_US}
            yield _slice(ledger, name_work(WorkKind(kind), path, operator), track, begin, end, cat=label, args=args)


def _lanes(ledger: Ledger) -> Iterator[tuple[int, Lane]]:
    """Streams, and the track of each. Without a clock of the events there is no place for them."""
    if ledger.info.has_clock:
        yield from enumerate(trace_lanes(ledger), FIRST_STREAM_TRACK)


def _tracks(ledger: Ledger) -> list[int]:
    """Per scope: the track it is drawn on. On one track slices must nest, and scopes of different threads need not."""
    open_until: list[list[int]] = []
    tracks = []
    for enter, end in zip(ledger.scope_enter.tolist(), ledger.scope_exit.tolist(), strict=True):
        for open_ends in open_until:
            while open_ends and open_ends[-1] < enter:
                open_ends.pop()
        free = (track for track, open_ends in enumerate(open_until) if not open_ends or open_ends[-1] >= end)
        track = next(free, len(open_until))
        if track == len(open_until):
            open_until.append([])
        open_until[track].append(end)
        tracks.append(FIRST_SCOPE_TRACK + track)
    return tracks


# -- counters ----------------------------------------------------------------------------------------------------------------


def _counters(ledger: Ledger) -> Iterator[Event]:
    times = _times_ns(ledger)
    for number, device in enumerate(ledger.devices):
        name = printable(device.name)
        for label, timeline in _timelines(ledger, number):
            for event, total in zip(timeline.events.tolist(), timeline.totals.tolist(), strict=True):
                yield _event(ledger, "C", f"{name} {label}", times[max(event, 0)], args={"bytes": total})


def _timelines(ledger: Ledger, number: int) -> Iterator[tuple[str, MemoryTimeline]]:
    yield "in use", trace_total(ledger, number)
    if ledger.devices[number].is_cuda:
        yield "reserved", _trace_reserved(ledger, number)
    for category, timeline in trace_categories(ledger, number).items():
        yield category.label, timeline


def _trace_reserved(ledger: Ledger, number: int) -> MemoryTimeline:
    """What CUDA's allocator has taken, wherever it changes."""
    done = replay(requests_from_ledger(ledger, ledger.devices[number].name))
    level = done.per_event(done.reserved)
    change = np.diff(level, prepend=0)
    events = np.flatnonzero(change)
    return MemoryTimeline.from_deltas(events, change[events])


def _peaks(ledger: Ledger) -> Iterator[Event]:
    times = _times_ns(ledger)
    for number, device in enumerate(ledger.devices):
        peak = find_peak(ledger, number)
        if peak.event >= 0:
            name = f"peak of {printable(device.name)}: {format_bytes(peak.size_bytes)}"
            yield _event(ledger, "i", name, times[peak.event], STEPS_TRACK, s="p")
