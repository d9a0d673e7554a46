"""A comparison as a page: what to run, time against memory, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memfit.compare import Comparison
from memfit.job import Cell
from memfit.units import format_bytes
from memfit.views.comparison import Sheet
from memfit.views.html.document import document
from memfit.views.html.markup import Child, Markup, element, table
from memfit.views.html.results.pictures import Dot, Limit, bar, copied, time_against_memory
from memfit.views.html.results.sections import folded, headline, section, sentences
from memfit.views.words.comparison import answer_of, compares_by_tokens, describe, make_sheet
from memfit.views.words.plan import command
from memfit.views.words.timing import format_seconds

NUM_TOKENS: Final = 1000


def comparison_page(comparison: Comparison) -> str:
    """One HTML file that needs nothing else."""
    sheet = make_sheet(comparison)
    first, *others = [*sheet.closing] or ["Nothing could be predicted."]
    parts = [headline(first, fits=comparison.recommended is not None), sentences(others)]
    if comparison.recommended is not None and (again := command(comparison.recommended)):
        parts.append(copied(again))
    timed = [cell for cell in comparison.cells if cell.figures is not None and cell.figures.step_seconds]
    if timed:
        work = compares_by_tokens(comparison)
        dots = [_dot(cell, comparison, by_work=work) for cell in timed]
        time = f"time of {NUM_TOKENS:,} tokens of a GPU" if work else "time of a step"
        parts.append(section("Time against memory", time_against_memory(dots, [*_limits(timed)], time=time)))
    if sheet.rows:
        parts.append(section("Side by side", _table(sheet, comparison)))
    failed = [f"{', '.join(row.values)}: {row.error}" for row in sheet.failed]
    parts += [folded("configuration that could not be predicted", failed), folded("reason to leave some out", sheet.left_out)]
    return document(sheet.title, sheet.facts, [*parts, folded("assumption", sheet.assumptions)])


def _dot(cell: Cell, comparison: Comparison, *, by_work: bool) -> Dot:
    assert cell.figures is not None
    name = describe(cell, comparison.varying) or "as it is"
    on = f" on {cell.inputs['gpu']}" if len(comparison.gpus) > 1 else ""
    seconds, size = cell.figures.step_seconds, cell.figures.smallest_fit
    kind = "best" if cell is comparison.recommended else "fits" if cell.figures.fits else "large"
    words = f"{name}{on}: {format_bytes(size)}, {format_seconds(seconds)} a step, {answer_of(cell).text}"
    if by_work:
        seconds = NUM_TOKENS / cell.figures.tokens_per_second
        words += f", {cell.figures.tokens_per_second:,.0f} tokens a second"
    return Dot(words=words, size_bytes=size, seconds=seconds, kind=kind)


def _limits(cells: list[Cell]) -> Iterator[Limit]:
    """Of each GPU, what its allocator can get."""
    found = {cell.inputs["gpu"]: cell.figures.capacity for cell in cells if cell.figures is not None}
    yield from (Limit(words=f"{format_bytes(size)} of {gpu}", size_bytes=size) for gpu, size in found.items())


def _table(sheet: Sheet, comparison: Comparison) -> Markup:
    sizes = {format_bytes(cell.smallest_fit): cell.smallest_fit for cell in comparison.cells if cell.smallest_fit is not None}
    whole = max(sizes.values())
    rows: list[list[Child]] = []
    for row in sheet.rows:
        fits = any(answer.fits for answer in row.answers)
        answers = [element("span", answer.text, class_="fits" if answer.fits else "fails") for answer in row.answers]
        name = [element("b" if row.recommended else "span", value) for value in row.values or ("as it is",)]
        figures = [row.speed, row.smallest_fit, bar(sizes[row.smallest_fit], whole, "good" if fits else "poor")]
        rows.append([*name, *figures, *answers, row.peak_phase, row.largest, row.against_best])
    axes = sheet.axes or ("configuration",)
    headings = (
        *axes,
        f"{sheet.speed}>",
        "smallest fit>",
        "",
        *(f"on {gpu}" for gpu in sheet.gpus),
        "peak in",
        "mostly",
        "more than the first",
    )
    return table("Configurations side by side", headings, rows, class_="cells")
