"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.views.escaping import printable
from memfit.views.verdicts import assumption_line


@dataclass(frozen=True, kw_only=True)
class GpuAnswer:
    """Whether one configuration fits on one GPU."""

    text: str
    fits: bool | None
    """``None`` where it is not known."""


@dataclass(frozen=True, kw_only=True)
class SheetRow:
    """One configuration."""

    values: tuple[str, ...]
    """Of the axes."""
    smallest_fit: str
    speed: str
    """The time of a step, or tokens per second, on the first GPU that has figures; empty where it is not known."""
    peak_phase: str
    largest: str
    """The category that holds most at the peak."""
    answers: tuple[GpuAnswer, ...]
    """For each GPU."""
    against_best: str
    recommended: bool


@dataclass(frozen=True, kw_only=True)
class FailedRow:
    """One that could not be predicted."""

    values: tuple[str, ...]
    error: str


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A comparison, ready to be drawn."""

    title: str
    facts: str
    """What all configurations have in common."""
    axes: tuple[str, ...]
    gpus: tuple[str, ...]
    speed: str
    """What the speed of a row is: ``a step``, ``tokens/s/GPU``."""
    rows: tuple[SheetRow, ...]
    """The one that needs least first."""
    failed: tuple[FailedRow, ...]
    left_out: tuple[str, ...]
    closing: tuple[str, ...]
    """What to do."""
    assumptions: tuple[str, ...]
    details: str
    """Why all of it failed."""


def draw(sheet: Sheet, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    """Heading, table, failures, and last what to do. A table too wide leaves out what is good to know but decides nothing."""
    yield Group(Text(printable(sheet.title), style="bold"), Text(printable(sheet.facts), style="dim"))
    if sheet.rows:
        yield Padding(_widest_table(sheet, console, options), (1, 0, 0, 0))
    if sheet.failed:
        yield Group(Text("\nCould not be predicted", style="bold"), Padding(_failures(sheet), (0, 0, 0, 2), expand=False))
    if sheet.details:
        yield Text("\n" + "\n".join(map(printable, sheet.details.splitlines())))
    yield from (Text(f"left out: {printable(reason)}", style="dim") for reason in sheet.left_out)
    if assumed := assumption_line(sheet.assumptions, IN_FILES):
        yield Text(assumed, style="yellow")
    yield from (Text(("\n" if number == 0 else "") + printable(said), style="bold") for number, said in enumerate(sheet.closing))


def _widest_table(sheet: Sheet, console: Console, options: ConsoleOptions) -> Table:
    """With as many of the extra columns as there is room for, no word broken."""
    for num_extras in range(len(EXTRAS), 0, -1):
        table = _table(sheet, num_extras)
        if Measurement.get(console, options.update_width(UNLIMITED), table).minimum <= options.max_width:
            return table
    whole = _table(sheet, 0)
    has_room = Measurement.get(console, options.update_width(UNLIMITED), whole).minimum <= options.max_width
    return whole if has_room else _table(sheet, 0, is_narrow=True)


IN_FILES = "--report FILE writes them out"
"""Where the assumptions of several predictions can be read."""
EXTRAS = ("peak in", "mostly", "more than the first")
"""Good to know, but they decide nothing."""
UNLIMITED = 10_000


def _table(sheet: Sheet, num_extras: int, *, is_narrow: bool = False) -> Table:
    """``is_narrow``: whether each fits in a word, without by how much; what breaks then breaks between lines, and is not cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    rows = [list(_cells(row, is_narrow=is_narrow)) for row in sheet.rows]
    on_gpus = [f"on {gpu}" for gpu in sheet.gpus] if not is_narrow else ["fits"] if len(sheet.gpus) == 1 else sheet.gpus
    headings = ["", *map(printable, sheet.axes), "smallest fit", sheet.speed, *on_gpus]
    first = 1 + len(sheet.axes)
    for number, (heading, *column) in enumerate(zip(headings, *rows, strict=True)):
        width = max(cell_len(heading), *(text.cell_len for text in column))  # which rich does not ask for when it measures
        justify: JustifyMethod = "right" if number in (first, first + 1) else "left"
        keeps_lines: dict[str, Any] = {"overflow": "fold"} if is_narrow else {"min_width": width, "no_wrap": True}
        table.add_column(Text(heading), justify=justify, **keeps_lines)
    for heading in EXTRAS[:num_extras]:
        table.add_column(heading, overflow="fold")
    for row, texts in zip(sheet.rows, rows, strict=True):
        extras = (row.peak_phase, row.largest, row.against_best)[:num_extras]
        table.add_row(*texts, *(Text(extra, style="dim") for extra in extras), style="bold" if row.recommended else "")
    return table


def _cells(row: SheetRow, *, is_narrow: bool) -> Iterator[Text]:
    yield Text(">" if row.recommended else "")
    yield from (Text(printable(value)) for value in row.values)
    yield Text(row.smallest_fit)
    yield Text(row.speed)
    yield from (Text(_SHORT[answer.fits] if is_narrow else answer.text, style=_COLOURS[answer.fits]) for answer in row.answers)


_SHORT = {True: "yes", False: "no", None: "?"}
_COLOURS = {True: "green", False: "red", None: ""}


def _failures(sheet: Sheet) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for row in sheet.failed:
        table.add_row(*(Text(printable(value)) for value in row.values), Text(printable(row.error), style="red"))
    return table
