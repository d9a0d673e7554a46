"""How full the device was over all steps, also over those that were not kept in full."""

from __future__ import annotations

from typing import Final

import numpy as np

from memfit.ledger.schema import Array, Levels
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.runs import Run
from memfit.views.words.moments import count

WIDTH: Final = 1000
HEIGHT: Final = 160
MOST_POINTS: Final = 500
MOST_ROWS: Final = 12


def levels_section(run: Run) -> Markup:
    """Nothing where no levels were noted."""
    levels = _levels_of(run)
    if len(levels) < 2:
        return join()
    unused = levels.reserved - levels.active
    worst = int(np.argmax(unused))
    caption = (
        f"{count(int(levels.last_step.max()) + 1, 'step')}. Most was reserved and not in use at the end of step "
        f"{int(levels.last_step[worst])}: {format_bytes(int(unused[worst]))} of {format_bytes(int(levels.reserved[worst]))}."
    )
    headings = ("steps", "in use at the end>", "reserved>", "not in use>", "between blocks in use>", "peak so far>")
    return element(
        "section",
        element("h2", "Levels and fragmentation, step by step"),
        _drawing(levels),
        element("p", caption, class_="quiet"),
        table("Levels of some steps", headings, [_row(levels, row) for row in _choose(len(levels), worst)], class_="levels"),
        class_="levels-section",
        aria_label="Levels and fragmentation, step by step",
    )


def _levels_of(run: Run) -> Levels:
    here = np.flatnonzero(run.ledger.levels.device == run.device_number)
    columns: dict[str, Array] = {name: column[here] for name, column in run.ledger.levels.columns().items()}
    return Levels(**columns)


def _drawing(levels: Levels) -> Markup:
    """Reserved behind, in use before it: what is seen of the one behind is not usable for everything."""
    most = max(int(levels.reserved.max()), int(levels.peak.max()), 1)
    areas = [
        element("polygon", points=_outline(values, most), class_=kind)
        for values, kind in ((levels.reserved, "k-reserved"), (levels.allocated, "k-allocated"))
    ]
    title = f"Reserved and in use at the end of each step, at most {format_bytes(most)}"
    return element(
        "svg",
        element("title", title),
        *areas,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width="100%",
        height=HEIGHT,
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
    )


def _outline(values: Array, most: int) -> str:
    """The highest of each stretch of steps, as many as can be seen."""
    starts = np.unique(np.arange(min(len(values), MOST_POINTS)) * len(values) // min(len(values), MOST_POINTS))
    highest = np.maximum.reduceat(values, starts)
    x = np.linspace(0, WIDTH, len(highest))
    points = [f"{left:.1f},{HEIGHT - HEIGHT * value / most:.1f}" for left, value in zip(x.tolist(), highest.tolist(), strict=True)]
    return " ".join((f"0,{HEIGHT}", *points, f"{WIDTH},{HEIGHT}"))


def _choose(num_rows: int, worst: int) -> list[int]:
    spread = np.linspace(0, num_rows - 1, min(MOST_ROWS, num_rows)).astype(int).tolist()
    return sorted({*spread, worst})


def _row(levels: Levels, row: int) -> tuple[str, ...]:
    first, last = int(levels.first_step[row]), int(levels.last_step[row])
    steps = "before the first" if last < 0 else f"{last}" if first == last else f"{max(first, 0)} to {last}"
    figures = (
        levels.allocated[row],
        levels.reserved[row],
        levels.reserved[row] - levels.active[row],
        levels.inactive_split[row],
        levels.peak[row],
    )
    return (steps, *(format_bytes(int(figure)) for figure in figures))
