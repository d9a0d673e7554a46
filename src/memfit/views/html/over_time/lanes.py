"""The last step over milliseconds, with what each stream did in it: for the script to draw, and as a table.

Only where the ledger has it: a prediction knows its streams, a measured run does not.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from memfit.analysis import Lane, LaneWindow, Moments, find_window, trace_lanes, trace_phases
from memfit.ledger import WorkKind
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.packing import Texts
from memfit.views.html.runs import Run
from memfit.views.words.moments import NAMED_BY_OPERATOR, count, format_duration, name_lane, name_work

SPANS: Final = 30_000
"""For all streams of all runs of a page together."""
FEWEST: Final = 100
"""The least number for each stream, however many runs there are."""


def lanes_table(run: Run) -> Markup:
    """How long each stream was busy with what; nothing where that is not known."""
    window = find_window(run.ledger)
    if window is None:
        return join()
    caption = "The streams of the last step as a table"
    lanes = trace_lanes(run.ledger)
    kinds = _kinds(lanes)
    rows = [_row(lane, window, kinds) for lane in lanes]
    headings = ("stream", "busy>", "idle>", *(f"{kind.label}>" for kind in kinds))
    return element("details", element("summary", caption), table(caption, headings, rows, class_="streams"))


def _row(lane: Lane, window: LaneWindow, kinds: list[WorkKind]) -> tuple[str, ...]:
    busy, by_kind = lane.busy_ns, lane.busy_by_kind()
    figures = (busy, max(window.end_ns - window.begin_ns - busy, 0), *(by_kind.get(kind, 0) for kind in kinds))
    return (name_lane(lane), *(format_duration(figure) if figure else "–" for figure in figures))


def pack_lanes(run: Run, moments: Moments, texts: Texts, num_runs: int) -> dict[str, Any] | None:
    """The same moments over the time of the last step, and its streams. Times are nanoseconds since the step began."""
    window = find_window(run.ledger)
    if window is None:
        return None
    num_lanes = len(np.unique(run.ledger.work.stream))
    lanes = trace_lanes(run.ledger, max(FEWEST, SPANS // (num_runs * num_lanes)))
    first = int(np.searchsorted(moments.events, window.first_event))
    times = _since(window, np.maximum.accumulate(moments.time_ns[first:]))
    peak = run.device.steps[-1].peak.event
    return {
        "firstMoment": first,
        "times": times,
        "timeTexts": [texts.number(format_duration(time)) for time in times],
        "end": window.end_ns - window.begin_ns,
        "peak": max(int(np.searchsorted(moments.events, max(peak, 0))), first),
        "phases": _phases(run, window),
        "kinds": [{"key": kind.label, "label": kind.label} for kind in _kinds(lanes)],
        "lanes": [_pack_lane(run, lane, window, texts) for lane in lanes],
    }


def _pack_lane(run: Run, lane: Lane, window: LaneWindow, texts: Texts) -> dict[str, Any]:
    work = lane.work
    share = lane.busy_ns / (window.end_ns - window.begin_ns)
    lasts = np.maximum(work.end_ns - work.begin_ns, 1)
    return {
        "name": name_lane(lane),
        "label": f"{name_lane(lane)}: {share:.0%} busy",
        "begins": _since(window, work.begin_ns),
        "ends": _since(window, work.end_ns),
        "shares": np.rint(100 * work.busy_ns / lasts).astype(np.int64).tolist(),
        "kinds": [WorkKind(kind).label for kind in work.kind.tolist()],
        "whatTexts": [texts.number(text) for text in _whats(run, lane)],
        "howTexts": [texts.number(text) for text in _hows(run, lane)],
        "whenTexts": [texts.number(format_duration(time)) for time in _since(window, work.begin_ns)],
        "idleTexts": [texts.number(format_duration(time)) for time in _idle(lane, window)],
    }


def _idle(lane: Lane, window: LaneWindow) -> list[int]:
    """How long the stream did nothing before each of its spans, and after the last."""
    since = np.concatenate(([window.begin_ns], lane.work.end_ns))
    until = np.append(lane.work.begin_ns, window.end_ns)
    found: list[int] = np.maximum(until - since, 0).tolist()
    return found


def _whats(run: Run, lane: Lane) -> list[str]:
    ledger, work = run.ledger, lane.work
    columns = zip(work.kind.tolist(), work.module.tolist(), work.op.tolist(), strict=True)
    return [name_work(WorkKind(kind), ledger.module_path(module), ledger.strings[op]) for kind, module, op in columns]


def _hows(run: Run, lane: Lane) -> list[str]:
    """``2.13 ms, 12 kernels, most of it in mm``."""
    work, strings = lane.work, run.ledger.strings
    found = []
    columns = (work.kind, work.begin_ns, work.end_ns, work.busy_ns, work.num_kernels, work.op)
    for kind, begin, end, busy, kernels, op in zip(*(column.tolist() for column in columns), strict=True):
        lasts, works = format_duration(end - begin), format_duration(busy)
        most = f", {'most of it ' if kernels > 1 else ''}{strings[op]}"
        if kind in NAMED_BY_OPERATOR:
            most = ""
        found.append(f"{lasts if lasts == works else f'{works} of {lasts}'}, {count(kernels, 'kernel')}{most}")
    return found


def _phases(run: Run, window: LaneWindow) -> list[list[Any]]:
    times = run.ledger.events.time_ns
    return [
        [
            *_since(window, times[[span.first_event, span.last_event]]),
            span.phase.label,
            span.phase.name.lower(),
        ]
        for span in trace_phases(run.ledger, run.device_number)
        if span.first_event >= window.first_event
    ]


def _kinds(lanes: list[Lane]) -> list[WorkKind]:
    """Those that there are, in their order."""
    there = {kind for lane in lanes for kind in lane.work.kind.tolist()}
    return [kind for kind in WorkKind if kind in there]


def _since(window: LaneWindow, time_ns: Any) -> list[int]:
    """Nanoseconds since the step began; what was already running then began with it."""
    found: list[int] = np.maximum(time_ns - window.begin_ns, 0).tolist()
    return found
