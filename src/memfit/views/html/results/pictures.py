"""Drawings of several results: time against memory, runs over one another, bars.

Positions are percentages, so that text is as large on a phone as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from memfit.analysis.timeline import trace_total
from memfit.ledger import Ledger
from memfit.ledger.schema import Array
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join
from memfit.views.html.packing import HEIGHT as TOP
from memfit.views.html.packing import Scale, percent
from memfit.views.words.moments import count
from memfit.views.words.timing import format_seconds

_HEIGHT: Final = 360
_WIDTH: Final = 1000
_NUM_POINTS: Final = 600
_NUM_COLOURS: Final = 6
_MOST_TIMES: Final = 6
FAR: Final = 2
"""A result that needs more than this much of the memory there is stands at the right edge: others keep their room."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A result in the picture of time against memory."""

    words: str
    size_bytes: int
    seconds: float
    """On the axis of time."""
    kind: str
    """``best``, ``fits`` or ``large``."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How much memory there is."""

    words: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """A run in the drawing of several."""

    label: str
    ledger: Ledger


def time_against_memory(
    dots: Sequence[Dot], limits: Sequence[Limit], outline: Sequence[Dot] = (), *, time: str = "time of a step"
) -> Markup:
    """Every result is a dot, which says what it is when it is pointed at; ``outline`` joins those that nothing beats; ``time`` says
    what takes it."""
    room = max((limit.size_bytes for limit in limits), default=0)
    most = max(dot.size_bytes for dot in dots)
    widest = max(room, *(dot.size_bytes for dot in dots if dot.size_bytes <= FAR * room or not room), 1)
    scale = Scale.up_to(widest)
    top = 1.08 * max(dot.seconds for dot in dots)

    def across(size_bytes: int) -> float:
        return min(100 * size_bytes / scale.top_bytes, 99.5)

    def down(seconds: float) -> float:
        return round(_HEIGHT * (1 - seconds / top), 1)

    points = " ".join(f"{_WIDTH * across(dot.size_bytes) / 100:.1f},{down(dot.seconds)}" for dot in outline)
    parts = [
        *(_tick_across(100 * place / TOP, label) for place, label in scale.ticks),
        *(_tick_down(down(seconds), format_seconds(seconds)) for seconds in _times(top)),
        *(mark for limit in limits for mark in _limit(across(limit.size_bytes), limit)),
        _stretched(element("polyline", class_="outline", points=points)) if len(outline) > 1 else "",
        *(_dot(dot, across(dot.size_bytes), down(dot.seconds)) for dot in dots),
    ]
    label = f"{time[0].upper()}{time[1:]} against memory: filled dots fit, open ones do not"
    far = sum(dot.size_bytes > widest for dot in dots)
    said = element("p", "Point at a dot, or go through them with Tab, for what it is.", class_="said", aria_live="polite")
    edge = f"; {far} of them, at the right edge, up to {format_bytes(most)}" if far else ""
    caption = f"{label}{edge}; the largest dot is what to run."
    svg = element("svg", *parts, class_="dots", width="100%", height=_HEIGHT + 40, role="group", aria_label=label)
    return element("figure", svg, said, element("figcaption", caption, class_="quiet"), data_dots=True)


def _dot(dot: Dot, x: float, y: float) -> Markup:
    radius = 8 if dot.kind == "best" else 5
    return element(
        "circle",
        element("title", dot.words),
        cx=f"{x:.2f}%",
        cy=y,
        r=radius,
        class_=f"at {dot.kind}",
        tabindex=0,
        data_said=dot.words,
        role="img",
        aria_label=dot.words,
    )


def _tick_across(x: float, label: str) -> Markup:
    anchor = "start" if x < 1 else "end" if x > 95 else "middle"
    return element("text", label, x=f"{x:.2f}%", y=_HEIGHT + 18, text_anchor=anchor)


def _tick_down(y: float, label: str) -> Markup:
    line = element("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid")
    return element("g", line, element("text", label, x=4, y=y - 4))


def _limit(x: float, limit: Limit) -> Iterator[Markup]:
    yield element("line", x1=f"{x:.2f}%", x2=f"{x:.2f}%", y1=0, y2=_HEIGHT, class_="room")
    yield element("text", limit.words, x=f"{x:.2f}%", dx=-6 if x > 50 else 6, y=14, text_anchor="end" if x > 50 else "start")


def _times(top: float) -> list[float]:
    """Round seconds up to ``top``."""
    step = next(base * 10.0**power for power in range(-6, 9) for base in (1, 2, 5) if top / (base * 10.0**power) <= _MOST_TIMES)
    return [step * number for number in range(int(top / step) + 1)]


def _stretched(*parts: Markup) -> Markup:
    """Shapes in units of ``_WIDTH``, as wide as the page is."""
    return element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", width="100%", height=_HEIGHT, preserveAspectRatio="none")


# -- runs over one another ---------------------------------------------------------------------------------------------------------


def overlay(lines: Sequence[Line]) -> Markup:
    """Memory in use over the steps of each run, with the same steps over one another. A click on a name leaves its line out."""
    traced = [_trace(line.ledger) for line in lines]
    scale = Scale.up_to(max((int(totals.max()) for _, totals in traced), default=0))
    first = min((float(places[0]) for places, _ in traced), default=0.0)
    last = max((float(places[-1]) for places, _ in traced), default=1.0)
    span = max(last - first, 1e-9)
    drawn = [
        element(
            "polyline",
            points=_stairs((places - first) / span * _WIDTH, _HEIGHT * (1 - totals / scale.top_bytes)),
            class_=f"line l-{number % _NUM_COLOURS}",
            data_line=number,
        )
        for number, (places, totals) in enumerate(traced)
    ]
    parts = [
        *(_tick_down(round(_HEIGHT * (1 - place / TOP), 1), label) for place, label in scale.ticks),
        *_steps(first, last),
        _stretched(*drawn),
    ]
    names = [
        element(
            "button",
            element("i", class_=f"key l-{number % _NUM_COLOURS}"),
            f"{line.label}, at most {format_bytes(int(totals.max()))}",
            type="button",
            class_="swatch",
            data_toggles=number,
            aria_pressed="true",
        )
        for number, (line, (_, totals)) in enumerate(zip(lines, traced, strict=True))
    ]
    label = f"Memory in use over the steps of {count(len(lines), 'run')}"
    svg = element("svg", *parts, class_="lines", width="100%", height=_HEIGHT + 24, role="img", aria_label=label)
    return element("figure", svg, element("div", *names, class_="legend"), data_lines=True)


def _trace(ledger: Ledger) -> tuple[Array, Array]:
    """Positions in its steps, and bytes in use there: 1.5 is the middle of step 1, and what precedes step 0 is below 0."""
    device = ledger.main_device
    if device is None:
        return np.zeros(1), np.zeros(1, dtype=np.int64)
    total = trace_total(ledger, device).reduced(_NUM_POINTS)
    bounds = np.array([0, *ledger.step_starts.tolist(), max(len(ledger.events), 1)], dtype=np.float64)
    steps = np.array([-1.0, *ledger.step_numbers.tolist(), (ledger.step_numbers[-1] if len(ledger.step_numbers) else -1) + 1])
    events = np.maximum(total.events, 0)
    inside = np.clip(np.searchsorted(bounds, events, side="right") - 1, 0, len(bounds) - 2)
    share = (events - bounds[inside]) / np.maximum(bounds[inside + 1] - bounds[inside], 1)
    return np.append(steps[inside] + share, steps[-1]), np.append(total.totals, total.totals[-1])


def _steps(first: float, last: float) -> Iterator[Markup]:
    every = max(1, round((last - first) / 10))
    for step in range(0, int(np.ceil(last)), every):
        x = f"{100 * (step - first) / max(last - first, 1e-9):.2f}%"
        yield element("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_="grid")
        yield element("text", f"step {step}", x=x, dx=4, y=_HEIGHT + 16)


def _stairs(xs: Array, ys: Array) -> str:
    """Memory changes at an event and stays until the next."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(np.repeat(xs, 2)[1:].tolist(), np.repeat(ys, 2)[:-1].tolist(), strict=True))


# -- bars --------------------------------------------------------------------------------------------------------------------------


def bar(size_bytes: int, whole: int, kind: str, limit: int | None = None) -> Markup:
    """An amount of ``whole``, and a mark where the memory ends."""
    parts = [element("rect", class_=kind, x=0, width=percent(max(size_bytes, 0), whole), y=0, height=12)]
    if limit is not None:
        parts.append(element("line", x1=percent(limit, whole), x2=percent(limit, whole), y1=0, y2=12, class_="edge"))
    return element("svg", *parts, class_="share", width="100%", height=12, aria_hidden="true")


def change_bar(change_bytes: int, most: int) -> Markup:
    """A change to the left or to the right of the middle, where ``most`` reaches to the edge."""
    width = 50 * abs(change_bytes) / max(most, 1)
    start = 50.0 if change_bytes > 0 else 50.0 - width
    piece = element(
        "rect", class_="grew" if change_bytes > 0 else "shrank", x=f"{start:.3f}%", width=f"{width:.3f}%", y=0, height=12
    )
    middle = element("line", x1="50%", x2="50%", y1=0, y2=12, class_="grid")
    return element("svg", middle, piece, class_="share", width="100%", height=12, aria_hidden="true")


def copied(text: str) -> Markup:
    """A command with a button that copies it; a line of it does not end within a flag."""
    words = [join(" " if number else "", element("span", word)) for number, word in enumerate(text.split(" "))]
    return element("p", element("code", *words), " ", element("button", "Copy", type="button", data_copy=text), class_="copied")
