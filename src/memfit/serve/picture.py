"""Memory over the last step of a run, by category, as shapes that the page only has to draw."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from memfit.analysis.timeline import MemoryTimeline, trace_categories, trace_total
from memfit.ledger import Ledger
from memfit.ledger.schema import Array
from memfit.units import format_bytes
from memfit.views.html.over_time.timeline import STACK
from memfit.views.words.timing import format_seconds

WIDTH: Final = 1000
HEIGHT: Final = 260
_NUM_POINTS: Final = 400
_NUM_TICKS: Final = 4


def draw_step(ledger: Ledger) -> dict[str, Any] | None:
    """The last step, over milliseconds where its times are known, over events otherwise; ``None`` where nothing is on a device."""
    device = ledger.main_device
    if device is None or not len(ledger.events):
        return None
    first = int(ledger.step_starts[-1]) if len(ledger.step_starts) else 0
    places = _moments(trace_total(ledger, device), first, len(ledger.events) - 1)
    times = ledger.events.time_ns if ledger.info.has_clock else np.arange(len(ledger.events))
    xs = _spread(times[places])
    by_category = trace_categories(ledger, device)
    stacked = [(category, by_category[category].at(places)) for category in STACK if category in by_category]
    heights = np.cumsum([sizes for _, sizes in stacked], axis=0)
    most = int(heights[-1].max()) or 1
    areas, below = [], np.zeros(len(places))
    for (category, sizes), above in zip(stacked, heights, strict=True):
        if sizes.any():
            areas.append({"key": category.name.lower(), "label": category.label, "points": _area(xs, below / most, above / most)})
        below = above
    span = (times[places[-1]] - times[places[0]]) / 1e9
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "areas": areas,
        "ticks": [
            {"y": round(HEIGHT * (1 - part / _NUM_TICKS), 1), "text": format_bytes(most * part // _NUM_TICKS)}
            for part in range(_NUM_TICKS + 1)
        ],
        "span": format_seconds(float(span)) if ledger.info.has_clock else f"{len(ledger.events) - first:,} events",
    }


def trace_runs(ledgers: list[Ledger]) -> dict[str, Any]:
    """The memory of several runs as lines of one drawing, each from its beginning to its end."""
    traced = []
    for ledger in ledgers:
        device = ledger.main_device
        if device is not None:
            total = trace_total(ledger, device).reduced(_NUM_POINTS)
            traced.append((_spread(np.maximum(total.events, 0)), total.totals))
    most = max((int(totals.max()) for _, totals in traced), default=0) or 1
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "lines": [_points(*_stairs(xs, HEIGHT * (1 - totals / most))) for xs, totals in traced],
        "peaks": [format_bytes(int(totals.max())) for _, totals in traced],
        "ticks": [
            {"y": round(HEIGHT * (1 - part / _NUM_TICKS), 1), "text": format_bytes(most * part // _NUM_TICKS)}
            for part in range(_NUM_TICKS + 1)
        ],
    }


def _moments(total: MemoryTimeline, first: int, last: int) -> Array:
    """The events that are worth drawing: both ends, and the highest and the lowest of equal pieces between them."""
    inside = (total.events >= first) & (total.events <= last)
    kept = MemoryTimeline(total.events[inside], total.totals[inside])
    chosen = kept.reduced(_NUM_POINTS).events if len(kept.events) else np.array([], dtype=np.int64)
    return np.unique(np.concatenate(([first], chosen, [last])))


def _spread(positions: Array) -> Array:
    low, high = positions[0], positions[-1]
    spread: Array = (positions - low) / max(high - low, 1) * WIDTH
    return spread


def _area(xs: Array, below: Array, above: Array) -> str:
    """Memory changes at an event and stays: both edges are stairs."""
    upper = _stairs(xs, HEIGHT * (1 - above))
    lower = _stairs(xs, HEIGHT * (1 - below))
    return f"{_points(*upper)} {_points(lower[0][::-1], lower[1][::-1])}"


def _stairs(xs: Array, ys: Array) -> tuple[Array, Array]:
    return np.repeat(xs, 2)[1:], np.repeat(ys, 2)[:-1]


def _points(xs: Array, ys: Array) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
