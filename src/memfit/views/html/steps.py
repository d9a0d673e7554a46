"""Steps side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, table
from memfit.views.html.peak import stacked_bar
from memfit.views.html.runs import Run
from memfit.views.html.timeline import STACK
from memfit.views.words.moments import name_running, name_step

EACH_END: Final = 12


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
        table("The peak of each step", headings, rows, class_="steps"),
        element("p", caption, class_="quiet"),
        class_="steps-section",
        aria_label="Steps side by side",
    )


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
