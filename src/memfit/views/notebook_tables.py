"""Comparisons and searches in a notebook: a table with bars, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.words.comparison import make_sheet
from memfit.views.words.plan import closing, configuration, how_it_was_searched, state_of, title
from memfit.views.words.timing import format_seconds

if TYPE_CHECKING:
    from memfit.compare import Comparison
    from memfit.plan import Plan
    from memfit.plan.search import PlanSearch

_GOOD, _BAD = "#0a7a5a", "#b3261e"
_PAGE = "font:13px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums;max-width:960px"
_CELL = "padding:2px 12px 2px 0;text-align:left;border:0"


def comparison_html(comparison: Comparison) -> str:
    """The rows of the table, each with a bar for what it needs, then what to do."""
    sheet = make_sheet(comparison)
    sizes = {format_bytes(cell.smallest_fit): cell.smallest_fit for cell in comparison.cells if cell.smallest_fit is not None}
    largest = max(sizes.values(), default=1)
    rows = []
    for row in sheet.rows:
        fits = any(answer.fits for answer in row.answers)
        bar = _bar(sizes[row.smallest_fit] / largest, good=fits)
        answers = [f'<span style="color:{_GOOD if answer.fits else _BAD}">{_text(answer.text)}</span>' for answer in row.answers]
        name = [f"<b>{_text(value)}</b>" if row.recommended else _text(value) for value in row.values]
        rows.append([*name, _text(row.smallest_fit), bar, _text(row.speed), *answers])
    headings = (*sheet.axes, "smallest fit", "", sheet.speed, *sheet.gpus)
    failed = [f"{', '.join(row.values)}: {row.error}" for row in sheet.failed]
    return _page(sheet.title, sheet.facts, _table(headings, rows), [*failed, *sheet.closing])


def search_html(found: PlanSearch) -> str:
    """All that was predicted, the one that needs least memory first; the answer is in bold."""
    largest = max((point.needed for point in found.points), default=1)
    rows = []
    for point in found.points:
        name = _text(configuration(point.cell, found.varying))
        seconds = point.cell.figures.step_seconds if point.cell.figures is not None else point.seconds
        bar = _bar(point.needed / largest, good=point.fits)
        is_best = point.cell is found.best
        state = _text(state_of(point, found))
        figures = (_figure(format_seconds(seconds)), _figure(format_bytes(point.needed)))
        rows.append([f"<b>{name}</b>" if is_best else name, *figures, bar, state])
    headings = ("configuration", "a step", "memory", "", found.gpu)
    return _page(title(found), how_it_was_searched(found), _table(headings, rows), [*closing(found)])


def plan_html(plan: Plan) -> str:
    """What it takes, and the code that does the same."""
    code = f'<pre style="overflow-x:auto">{_text(plan.code(), keep_lines=True)}</pre>'
    return _page(repr(plan), "", code, [])


def _page(title: str, facts: str, body: str, sentences: Sequence[str]) -> str:
    head = f'<div style="font-weight:600">{_text(title)}</div><div style="opacity:.7">{_text(facts)}</div>'
    return f'<div style="{_PAGE}">{head}{body}{"".join(_sentences(sentences))}</div>'


def _sentences(sentences: Sequence[str]) -> Iterator[str]:
    yield from (f"<div>{_text(sentence)}</div>" for sentence in sentences)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th style="{_CELL};opacity:.7;font-weight:400">{_text(heading)}</th>' for heading in headings)
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<table style="border-collapse:collapse;margin:6px 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _figure(text: str) -> str:
    """A number keeps its unit beside it."""
    return f'<span style="white-space:nowrap">{_text(text)}</span>'


def _bar(share: float, *, good: bool) -> str:
    width, colour = max(1, round(160 * share)), _GOOD if good else _BAD
    return f'<div style="width:160px"><div style="width:{width}px;height:9px;border-radius:2px;background:{colour}"></div></div>'


def _text(text: str, *, keep_lines: bool = False) -> str:
    return "\n".join(escape(printable(line)) for line in text.splitlines()) if keep_lines else escape(printable(text))
