"""What two runs differ in, as a page: both over one another, and what is behind the change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memfit.analysis.diff.blocks import Change
from memfit.analysis.diff.compared import Compared
from memfit.analysis.diff.runs import Diff
from memfit.ledger import Ledger
from memfit.units import format_bytes
from memfit.views.diff import describe_side, diff_answer, notes, number_of_blocks, side_names, signed_bytes
from memfit.views.html.document import document
from memfit.views.html.markup import Child, Markup, dotted, element, join, table
from memfit.views.html.results.pictures import Line, change_bar, overlay
from memfit.views.html.results.sections import headline, section, sentences
from memfit.views.words.moments import name_op, name_step

NUM_ROWS: Final = 40


def diff_page(diff: Diff, ledgers: tuple[Ledger, Ledger], files: tuple[str, str]) -> str:
    """One HTML file that needs nothing else."""
    names = side_names(diff)
    sides = [
        f"{name}: {file}, {describe_side(side)}" for name, file, side in zip(names, files, (diff.before, diff.after), strict=True)
    ]
    lines = [Line(label=f"{name} ({file})", ledger=ledger) for name, file, ledger in zip(names, files, ledgers, strict=True)]
    parts = [headline(diff_answer(diff)), sentences([*sides, *notes(diff)]), _figures(diff, names)]
    parts.append(section("Both over one another", overlay(lines)))
    if not diff.empty:
        columns = [
            _part("By category", "category", diff.categories, names, ""),
            _part("By module", "module", diff.modules, names, "outside all modules"),
            _part("By the phase in which it was allocated", "phase", diff.phases, names, "outside all phases"),
            _part("By operator", "operator", diff.ops, names, ""),
        ]
        parts.append(section("What changed at the peak", element("div", *columns, class_="columns wide")))
        parts += [_blocks(diff, names), _levels(diff, names)]
    return document(f"{files[0]} → {files[1]}", "memfit diff", parts)


def _figures(diff: Diff, names: tuple[str, str]) -> Markup:
    rows = [(figure.name, *_amounts(figure), "" if figure.growth is None else f"{figure.growth:+.2%}") for figure in diff.figures]
    return table("The peaks", ("peak", *(f"{name}>" for name in names), "change>", ">"), rows)


def _part(title: str, heading: str, changes: Sequence[Change], names: tuple[str, str], nameless: str) -> Markup:
    if not changes:
        return join()
    most = max(abs(change.change_bytes) for change in changes)
    rows = [(dotted(change.name or nameless), *_compared(change, most)) for change in changes[:NUM_ROWS]]
    headings = (heading, "", "change>", *(f"{name}>" for name in names))
    return element("div", element("h3", title), table(title, headings, rows))


def _compared(change: Compared, most: int) -> tuple[Child, ...]:
    before, after, difference = _amounts(change)
    return change_bar(change.change_bytes, most), difference, before, after


def _blocks(diff: Diff, names: tuple[str, str]) -> Markup:
    if not diff.blocks:
        return join()
    most = max(abs(change.change_bytes) for change in diff.blocks)
    rows = [
        (
            dotted(change.kind.module or "–"),
            dotted(name_op(change.kind.op)),
            change.kind.category.label,
            change.kind.phase.label if change.kind.phase is not None else "",
            number_of_blocks(change),
            *_compared(change, most),
        )
        for change in diff.blocks[: 5 * NUM_ROWS]
    ]
    headings = ("module", "operator", "category", "phase", "blocks>", "", "change>", *(f"{name}>" for name in names))
    finder = element("div", data_filter="Find blocks: a module, an operator, a category")
    return section("The blocks behind it", finder, table("The blocks behind it", headings, rows, class_="tall"))


def _levels(diff: Diff, names: tuple[str, str]) -> Markup:
    if not diff.levels:
        return join()
    most = max(abs(level.change_bytes) for level in diff.levels)
    rows = [
        (name_step(level.step), level.phase.label if level.phase is not None else "outside all phases", *_compared(level, most))
        for level in diff.levels[: 5 * NUM_ROWS]
    ]
    title = "The peaks of phases, where they differ"
    return section(title, table(title, ("step", "phase", "", "change>", *(f"{name}>" for name in names)), rows, class_="tall"))


def _amounts(compared: Compared) -> tuple[str, str, Markup]:
    kind = "fails" if compared.change_bytes > 0 else "fits" if compared.change_bytes < 0 else None
    change = element("span", signed_bytes(compared.change_bytes), class_=kind)
    return format_bytes(compared.before_bytes), format_bytes(compared.after_bytes), change
