"""A search as one HTML file: the picture of time against memory, and its table. No script is needed to read it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

from memfit import __version__
from memfit.plan.search import PlanSearch, Point
from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.words.plan import closing, configuration, failures, how_it_was_searched, state_of, title
from memfit.views.words.timing import format_seconds

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 760, 380, 80, 50, 20
_TICKS = 5

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --quiet: #57606a; --line: #d0d7de; --paper: #ffffff; --fits: #1a7f37; --large:
#b35900; --best: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --quiet: #9198a1; --line: #3d444d; --paper: #0d1117; --fits: #3fb950;
  --large: #e3863b; --best: #79b8ff; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--paper); }
.quiet, caption, text { color: var(--quiet); fill: var(--quiet); }
svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; }
.axis { stroke: var(--line); }
.room { stroke: var(--large); stroke-dasharray: 5 4; }
.outline { fill: none; stroke: var(--quiet); }
.fits { fill: var(--fits); }
.large { fill: none; stroke: var(--large); stroke-width: 2; }
.best { fill: var(--best); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
"""


def plan_page(found: PlanSearch) -> str:
    """One HTML file that needs nothing else."""
    hashed = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    head = (
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{title(found)} – memfit"),
        Markup(f"<style>{_STYLE}</style>"),
    )
    said = [element("p", sentence) for sentence in closing(found)]
    notes = [element("li", sentence) for sentence in (*failures(found), *(f"assumed: {each}" for each in found.assumptions))]
    body = (
        element("header", element("h1", title(found)), element("p", how_it_was_searched(found), class_="quiet")),
        element("main", *said, _picture(found) if found.points else join(), _table(found), element("ul", *notes)),
        element("footer", element("p", f"memfit {__version__}", class_="quiet")),
    )
    return f"<!doctype html>\n{element('html', element('head', *head), element('body', *body), lang='en')}\n"


def _table(found: PlanSearch) -> Markup:
    rows = [
        (
            configuration(point.cell, found.varying),
            format_bytes(point.needed),
            format_seconds(point.cell.figures.step_seconds),
            state_of(point, found),
        )
        for point in found.outline
        if point.cell.figures is not None
    ]
    return table("The fastest that each amount of memory allows", ("configuration", "memory>", "a step>", ""), rows)


# -- the picture ------------------------------------------------------------------------------------------------------------------


def _picture(found: PlanSearch) -> Markup:
    """Every prediction is a point; a line joins those that nothing beats; another says how much memory there is."""
    most_bytes = 1.05 * max(found.room, *(point.needed for point in found.points))
    times = [point.cell.figures.step_seconds for point in found.points if point.cell.figures is not None]
    most_seconds = 1.05 * max(times)

    def place(needed: float, seconds: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _EDGE) * needed / most_bytes
        return round(across, 1), round(_EDGE + (_HEIGHT - _EDGE - _BOTTOM) * (1 - seconds / most_seconds), 1)

    parts = [*_axes(most_bytes, most_seconds), *_room(found, place(found.room, 0)[0])]
    outline = [place(point.needed, _step(point)) for point in found.frontier]
    parts.append(element("polyline", class_="outline", points=" ".join(f"{x},{y}" for x, y in outline)))
    for point in found.points:
        x, y = place(point.needed, _step(point))
        kind = "best" if point.cell is found.best else "fits" if point.fits else "large"
        words = f"{configuration(point.cell, found.varying)}: {format_bytes(point.needed)}, {format_seconds(_step(point))} a step"
        parts.append(element("circle", element("title", words), cx=x, cy=y, r=7 if kind == "best" else 5, class_=kind))
    label = "Step time against memory: filled points fit, open ones do not; the largest is the fastest that fits"
    return element(
        "figure",
        element("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label),
        element("figcaption", label, class_="quiet"),
    )


def _step(point: Point) -> float:
    assert point.cell.figures is not None
    return point.cell.figures.step_seconds


def _axes(most_bytes: float, most_seconds: float) -> Iterator[Markup]:
    floor, right = _HEIGHT - _BOTTOM, _WIDTH - _EDGE
    yield element("line", class_="axis", x1=_LEFT, y1=floor, x2=right, y2=floor)
    yield element("line", class_="axis", x1=_LEFT, y1=_EDGE, x2=_LEFT, y2=floor)
    for number in range(_TICKS + 1):
        share = number / _TICKS
        across, up = _LEFT + (right - _LEFT) * share, floor - (floor - _EDGE) * share
        yield element("text", format_bytes(int(most_bytes * share)), x=round(across, 1), y=floor + 18, text_anchor="middle")
        yield element("text", format_seconds(most_seconds * share), x=_LEFT - 8, y=round(up + 4, 1), text_anchor="end")
    yield element("text", "memory that the allocator needs", x=(_LEFT + right) / 2, y=_HEIGHT - 8, text_anchor="middle")


def _room(found: PlanSearch, across: float) -> Iterator[Markup]:
    yield element("line", class_="room", x1=across, y1=_EDGE, x2=across, y2=_HEIGHT - _BOTTOM)
    yield element("text", f"{format_bytes(found.room)} on {found.gpu}", x=across - 6, y=_EDGE + 12, text_anchor="end")
