"""A search as a page: time against memory, everything that was predicted, and what to run."""

from __future__ import annotations

from memfit.plan.search import PlanSearch, Point
from memfit.units import format_bytes
from memfit.views.html.document import document
from memfit.views.html.markup import Markup, element, table
from memfit.views.html.results.pictures import Dot, Limit, bar, copied, time_against_memory
from memfit.views.html.results.sections import folded, headline, section, sentences
from memfit.views.words.plan import closing, command, configuration, failures, how_it_was_searched, state_of, title
from memfit.views.words.timing import format_seconds


def plan_page(found: PlanSearch) -> str:
    """One HTML file that needs nothing else."""
    first, *others = [*closing(found, with_command=False)] or ["Nothing was predicted."]
    parts = [headline(first, fits=found.plan is not None), sentences(others)]
    if found.best is not None and (again := command(found.best)):
        parts.append(copied(again))
    if found.points:
        parts += [section("Time against memory", _picture(found)), section("Everything that was predicted", _table(found))]
    parts += [folded("could not be predicted", failures(found)), folded("assumption", found.assumptions)]
    return document(title(found), how_it_was_searched(found), parts)


def _picture(found: PlanSearch) -> Markup:
    limit = Limit(words=f"{format_bytes(found.room)} of {found.gpu}, less the margin", size_bytes=found.room)
    return time_against_memory(
        [_dot(point, found) for point in found.points], [limit], [_dot(point, found) for point in found.frontier]
    )


def _dot(point: Point, found: PlanSearch) -> Dot:
    name, seconds = configuration(point.cell, found.varying), _seconds(point)
    words = f"{name}: {format_bytes(point.needed)}, {format_seconds(seconds)} a step, {state_of(point, found)}"
    kind = "best" if point.cell is found.best else "fits" if point.fits else "large"
    return Dot(words=words, size_bytes=point.needed, seconds=seconds, kind=kind)


def _table(found: PlanSearch) -> Markup:
    whole = max(found.room, *(point.needed for point in found.points))
    rows = [
        (
            element("b" if point.cell is found.best else "span", configuration(point.cell, found.varying)),
            format_seconds(_seconds(point)),
            format_bytes(point.needed),
            bar(point.needed, whole, "good" if point.fits else "poor", found.room),
            element("span", state_of(point, found), class_="fits" if point.fits else "fails"),
        )
        for point in sorted(found.points, key=_seconds)
    ]
    return table("Everything that was predicted", ("configuration", "a step>", "memory>", "", "on this GPU"), rows, class_="cells")


def _seconds(point: Point) -> float:
    assert point.cell.figures is not None
    return point.cell.figures.step_seconds
