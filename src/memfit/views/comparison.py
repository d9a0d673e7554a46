"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.views.escaping import printable


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of one configuration on one GPU."""

    text: str
    fits: bool | None
    """``None`` where nobody knows."""


@dataclass(frozen=True, kw_only=True)
class SheetRow:
    """One configuration."""

    values: tuple[str, ...]
    """Of the axes."""
    smallest_fit: str
    peak_phase: str
    largest: str
    """The category that holds most at the peak."""
    verdicts: tuple[Verdict, ...]
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
    rows: tuple[SheetRow, ...]
    """The one that needs least first."""
    failed: tuple[FailedRow, ...]
    left_out: tuple[str, ...]
    closing: tuple[str, ...]
    """What to do."""
    assumptions: tuple[str, ...]
    details: str
    """Why all of it failed."""


WIDE = 100
"""Below this many columns, the table leaves out what is good to know but decides nothing."""


def draw(sheet: Sheet, width: int) -> Iterator[RenderableType]:
    """Heading, table, failures, and last what to do."""
    yield Group(Text(printable(sheet.title), style="bold"), Text(printable(sheet.facts), style="dim"))
    if sheet.rows:
        yield Padding(_table(sheet, wide=width >= WIDE), (1, 0, 0, 0))
    if sheet.failed:
        yield Group(Text("\nCould not be predicted", style="bold"), Padding(_failures(sheet), (0, 0, 0, 2), expand=False))
    if sheet.details:
        yield Text("\n" + "\n".join(map(printable, sheet.details.splitlines())))
    yield from (Text(f"left out: {printable(reason)}", style="dim") for reason in sheet.left_out)
    yield from (Text(f"assumed: {printable(sentence)}", style="dim") for sentence in sheet.assumptions)
    yield from (Text(("\n" if number == 0 else "") + printable(said), style="bold") for number, said in enumerate(sheet.closing))


def _table(sheet: Sheet, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for axis in sheet.axes:
        table.add_column(Text(printable(axis)))
    table.add_column("smallest fit", justify="right", no_wrap=True)
    for gpu in sheet.gpus:
        table.add_column(f"on {gpu}", no_wrap=True)
    table.add_column("peak in")
    for heading in ("mostly", "more than the first") if wide else ():
        table.add_column(heading)
    for row in sheet.rows:
        table.add_row(*_cells(row, wide=wide), style="bold" if row.recommended else "")
    return table


def _cells(row: SheetRow, *, wide: bool) -> Iterator[Text]:
    yield Text(">" if row.recommended else "")
    yield from (Text(printable(value)) for value in row.values)
    yield Text(row.smallest_fit)
    yield from (Text(verdict.text, style=_COLOURS[verdict.fits]) for verdict in row.verdicts)
    yield Text(row.peak_phase)
    if wide:
        yield Text(row.largest)
        yield Text(row.against_best, style="dim")


_COLOURS = {True: "green", False: "red", None: ""}


def _failures(sheet: Sheet) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for row in sheet.failed:
        table.add_row(*(Text(printable(value)) for value in row.values), Text(printable(row.error), style="red"))
    return table
