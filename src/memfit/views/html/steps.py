"""Steps side by side: how high each rose, with evaluations and saves between them, and some of them by category."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memfit.analysis import Leg
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.over_time.timeline import STACK
from memfit.views.html.packing import percent
from memfit.views.html.peak import stacked_bar
from memfit.views.html.runs import Run
from memfit.views.words.course import highlights, is_worth_drawing
from memfit.views.words.moments import count, name_running, name_step

EACH_END: Final = 12
HEIGHT: Final = 180
MOST_COLUMNS: Final = 500
"""As many as can be told apart; of more steps, the highest of each stretch is drawn."""


def steps_section(run: Run) -> Markup:
    chosen = list(_choose(run))
    rows = [_row(run, i) for i in chosen]
    left = len(run.device.steps) - len(chosen)
    caption = f"The peak of each step{f', {left:,} steps in the middle left out' if left else ''}."
    reserved = () if run.step_reserved is None else ("reserved>",)
    headings = ("step", "at its peak, by category", "peak>", *reserved, "at its end>", "the peak is in")
    return element(
        "section",
        element("h2", "Steps side by side"),
        _picture(run),
        table("The peak of each step", headings, rows, class_="steps"),
        element("p", caption, class_="quiet"),
        class_="steps-section",
        aria_label="Steps side by side",
    )


# -- the whole run -----------------------------------------------------------------------------------------------------------------


def _picture(run: Run) -> Markup:
    """Peaks over steps, and what is worth a look in a table; nothing for a few steps that are alike."""
    course = run.device.course
    if not is_worth_drawing(course):
        return join()
    rows = [(found.what, found.when, format_bytes(found.leg.peak_bytes), found.leg.batch) for found in highlights(course)]
    parts = [table("What to look at", ("", "when", "peak>", "largest batch"), rows, class_="highlights")]
    return element("div", *([_drawing(run), *parts] if course.steps else parts), class_="course")


def _drawing(run: Run) -> Markup:
    """Bars for steps, dots for evaluations and saves, a line for what the allocator can get."""
    steps, others = run.device.course.steps, (*run.device.course.evaluations, *run.device.course.saves)
    columns = [max(part, key=lambda leg: leg.peak_bytes) for part in _parts(steps)]
    most = max(leg.peak_bytes for leg in (*steps, *others)) or 1
    limit = None if run.verdict is None else run.verdict.capacity
    top = limit if limit is not None and most < limit <= 2 * most else most
    places = {leg.number: place for place, leg in enumerate(steps)}
    dots = [_dot(leg, percent(places.get(leg.step, -1) + 1, len(steps)), top) for leg in others]
    lines = [] if limit is None or limit > top else [_line(limit, top)]
    title = f"The peaks of {count(len(steps), 'step')}, at most {format_bytes(max(leg.peak_bytes for leg in steps))}"
    largest = run.device.course.largest_batch
    marked = [] if largest is None else [_ring(largest, percent(2 * places[largest.number] + 1, 2 * len(steps)), top)]
    return join(
        element(
            "svg",
            element("title", title),
            *(_bar(leg, place, len(columns), top) for place, leg in enumerate(columns)),
            *dots,
            *marked,
            *lines,
            class_="peaks",
            width="100%",
            height=HEIGHT,
            role="img",
            aria_label=title,
        ),
        element("p", _legend(run, top, has_limit=bool(lines)), class_="quiet"),
    )


def _parts(steps: tuple[Leg, ...]) -> Iterator[tuple[Leg, ...]]:
    num = min(len(steps), MOST_COLUMNS)
    for place in range(num):
        yield steps[place * len(steps) // num : (place + 1) * len(steps) // num]


def _bar(leg: Leg, place: int, num: int, top: int) -> Markup:
    height = round(HEIGHT * leg.peak_bytes / top, 1)
    words = f"step {leg.number}: {format_bytes(leg.peak_bytes)}{f', {leg.batch}' if leg.batch else ''}"
    across = {"x": percent(place, num), "width": percent(1, num)}
    return element("rect", element("title", words), class_="k-allocated", y=round(HEIGHT - height, 1), height=height, **across)


def _dot(leg: Leg, across: str, top: int) -> Markup:
    kind = leg.kind.name.lower()
    words = f"{kind} {leg.number}: {format_bytes(leg.peak_bytes)}{f', {leg.batch}' if leg.batch else ''}"
    return element("circle", element("title", words), class_=f"dot {kind}", cx=across, cy=_height(leg, top), r=5)


def _ring(leg: Leg, across: str, top: int) -> Markup:
    """Around the top of the step with the largest batch."""
    words = element("title", f"the largest batch, {leg.batch}: step {leg.number}")
    return element("circle", words, class_="ring", cx=across, cy=_height(leg, top), r=7)


def _height(leg: Leg, top: int) -> float:
    """Never cut off by the edge."""
    return round(max(8.0, HEIGHT - HEIGHT * leg.peak_bytes / top), 1)


def _line(limit: int, top: int) -> Markup:
    height = round(HEIGHT - HEIGHT * limit / top, 1)
    words = element("title", f"what the allocator can get: {format_bytes(limit)}")
    return element("line", words, class_="edge", x1="0%", x2="100%", y1=max(1.0, height), y2=max(1.0, height))


def _legend(run: Run, top: int, *, has_limit: bool) -> str:
    course = run.device.course
    parts = [f"The peak of each of {count(len(course.steps), 'step')}, drawn from 0 to {format_bytes(top)}"]
    if course.evaluations or course.saves:
        parts.append("dots are evaluations and saves")
    if course.largest_batch is not None:
        parts.append("the ring is the step with the largest batch")
    if has_limit:
        parts.append("the line is what the allocator can get")
    return f"{'; '.join(parts)}."


# -- some of its steps -------------------------------------------------------------------------------------------------------------


def _choose(run: Run) -> Iterator[int]:
    """The first, the last and the highest."""
    for number, step in enumerate(run.device.steps):
        if number <= EACH_END or number >= len(run.device.steps) - EACH_END or step.step == run.device.peak.step:
            yield number


def _row(run: Run, number: int) -> tuple[Markup | str, ...]:
    step = run.device.steps[number]
    breakdown = {category: step.peak.breakdown[category] for category in STACK if category in step.peak.breakdown}
    name = name_step(step.step)
    return (
        element("strong", f"{name} ▲") if step.step == run.device.peak.step else name,
        stacked_bar(breakdown, run.device.peak.size_bytes),
        format_bytes(step.peak.size_bytes),
        *(() if run.step_reserved is None else (format_bytes(run.step_reserved[number]),)),
        format_bytes(step.end_bytes),
        name_running(step.peak),
    )
