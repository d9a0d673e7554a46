"""What a search found, on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.plan.search import PlanSearch
from memfit.units import format_bytes
from memfit.views.comparison import IN_FILES
from memfit.views.escaping import printable
from memfit.views.verdicts import assumption_line
from memfit.views.words.plan import closing, configuration, failures, how_it_was_searched, state_of, title
from memfit.views.words.timing import format_seconds

NARROW = 100
"""Columns of a terminal on which not every column has room."""


def plan_sections(found: PlanSearch, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    """Heading, the frontier of time against memory, and last what to do."""
    yield Group(Text(printable(title(found)), style="bold"), Text(printable(how_it_was_searched(found)), style="dim"))
    if found.frontier:
        yield Padding(_frontier(found, is_narrow=options.max_width < NARROW), (1, 0, 0, 0))
    yield from (Text(printable(reason), style="red") for reason in failures(found))
    yield from (Text(f"assumed: {printable(sentence)}", style="dim") for sentence in found.space_assumptions)
    others = [sentence for sentence in found.assumptions if sentence not in found.space_assumptions]
    if assumed := assumption_line(others, IN_FILES):
        yield Text(assumed, style="yellow")
    yield from (Text(("\n" if number == 0 else "") + printable(said), style="bold") for number, said in enumerate(closing(found)))


def _frontier(found: PlanSearch, *, is_narrow: bool) -> Table:
    """The fastest that each amount of memory allows, of what was predicted. Where there is little room, speed is told by the time
    of a step alone, and the configuration stays."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("memory", "a step", *(() if is_narrow else ("tokens/s/GPU",))):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    table.add_column("", no_wrap=not is_narrow)
    for point in found.outline:
        figures, is_best = point.cell.figures, point.cell is found.best
        assert figures is not None
        table.add_row(
            ">" if is_best else "",
            format_bytes(point.needed),
            format_seconds(figures.step_seconds),
            *(() if is_narrow else (f"{figures.tokens_per_second:,.0f}" if figures.tokens_per_second else "",)),
            Text(printable(configuration(point.cell, found.varying))),
            Text(state_of(point, found), style="green" if point.fits else "red"),
            style="bold" if is_best else "",
        )
    return table
