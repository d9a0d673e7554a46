"""A run drawn in a notebook: the peak, the verdict, memory over the run by category, and what the peak is made of.

::

    Ledger, Prediction ──> _repr_html_ ──> one <div>: headline, <svg>, <table>

Nothing is fetched and nothing is executed. Text, lines and background are the notebook's own, so that it reads in light and dark
alike; the colours of categories are those of the report page.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

import numpy as np

from memfit.allocator import Verdict
from memfit.analysis import DeviceReport, MemoryTimeline, Report, build_report
from memfit.ledger import Category, Ledger
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.verdicts import answer
from memfit.views.words.moments import count, name_moment
from memfit.views.words.recipe import recipe_line
from memfit.views.words.timing import speed_line

COLOURS: Final = {
    Category.PARAMETER: "#0b65ab",
    Category.SHARDED_PARAMETER: "#0b65ab",
    Category.BUFFER: "#c5e4fb",
    Category.OPTIMIZER_STATE: "#f0b21a",
    Category.UNSHARDED_PARAMETER: "#6db9ea",
    Category.GRADIENT: "#c94a12",
    Category.SHARDED_GRADIENT: "#c94a12",
    Category.UNSHARDED_GRADIENT: "#ec8452",
    Category.INPUT: "#5a656d",
    Category.KEY_VALUE_CACHE: "#7c22d6",
    Category.ACTIVATION: "#0a8f69",
    Category.FORWARD_TEMPORARY: "#76d6ae",
    Category.BACKWARD_TEMPORARY: "#cdb592",
    Category.OPTIMIZER_TEMPORARY: "#f5e3ac",
    Category.ALL_GATHER: "#8f3f86",
    Category.REDUCE_SCATTER: "#e3a3c9",
    Category.ALL_REDUCE: "#6d1c5c",
    Category.WORKSPACE: "#7b8389",
    Category.CHECKPOINT: "#38434b",
    Category.OTHER: "#c9cccd",
}
"""In the order in which they are stacked: what stays, at the bottom."""

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 210, 72, 14, 18
NUM_POINTS = 200
NUM_STEP_LABELS = 12
NUM_ROWS = 8

_GOOD, _BAD = "#0a8f69", "#d64541"
_PAGE = "font:13px/1.45 system-ui,sans-serif;max-width:720px;font-variant-numeric:tabular-nums"
_CELL = "padding:1px 14px 1px 0;border:0;background:none;text-align:"


def notebook_html(ledger: Ledger, report: Report | None = None, verdict: Verdict | None = None) -> str:
    """A ledger for a notebook, with the report and the verdict on it where they are known already."""
    parts = _parts(
        report or build_report(ledger), dict(zip(ledger.step_starts.tolist(), ledger.step_numbers.tolist(), strict=True)), verdict
    )
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'


def _parts(report: Report, step_starts: dict[int, int], verdict: Verdict | None) -> Iterator[str]:
    problem = report.info.problem
    if problem:
        yield _line(f"incomplete: {problem}", f"color:{_BAD}")
    if verdict is not None:
        yield _line(
            answer(verdict, problem, report.info.covered),
            f"font-weight:600;color:{_GOOD if verdict.fits and not problem else _BAD}",
        )
        yield from (_line(line, "opacity:.7") for line in (recipe_line(report.info.asked), speed_line(report.info)) if line)
        yield from (_line(f"assumed: {sentence}", "padding-left:1em") for sentence in report.info.assumptions)
    if not report.devices:
        yield _line("nothing was recorded", "opacity:.7")
        return
    device = report.devices[0]
    yield _line(f"peak {format_bytes(device.peak.size_bytes)} on {device.name}, {name_moment(device.peak)}", "font-weight:600")
    if device.peak.size_bytes:
        yield _drawing(device, step_starts)
        yield _table(device)
    facts = [report.info.source, count(report.num_steps, "step"), count(report.num_events, "event")]
    facts += [f"{name} {version}" for name, version in report.info.facts.items()]
    yield _line(", ".join(facts), "opacity:.7;font-size:12px")


def _line(text: str, style: str) -> str:
    return f'<div style="{style}">{_text(text)}</div>'


def _text(text: str) -> str:
    return escape(printable(text))


# -- the drawing -------------------------------------------------------------------------------------------------------------


def _drawing(device: DeviceReport, step_starts: dict[int, int]) -> str:
    label = f"memory on {device.name} over the run, by category; the peak is {format_bytes(device.peak.size_bytes)}"
    parts = (*_areas(device), *_axis(device), *_steps(_Scale(device), step_starts), *_peak(device))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{_text(label)}" '
        f'style="display:block;margin:6px 0" font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


class _Scale:
    """From events and bytes to the drawing's coordinates."""

    def __init__(self, device: DeviceReport) -> None:
        self._first, self._last = device.timeline.event[0], max(device.timeline.event[-1], device.timeline.event[0] + 1)
        self._most = device.peak.size_bytes

    def x(self, event: int) -> str:
        return f"{LEFT + (event - self._first) / (self._last - self._first) * (WIDTH - LEFT - 2):.1f}"

    def y(self, size: int) -> str:
        return f"{HEIGHT - BOTTOM - size / self._most * (HEIGHT - TOP - BOTTOM):.1f}"


def _areas(device: DeviceReport) -> Iterator[str]:
    """One shape per category, stacked."""
    timeline, scale = device.timeline, _Scale(device)
    points = _chosen(timeline.total_bytes)
    xs = [scale.x(timeline.event[point]) for point in points]
    below = [0] * len(points)
    for category in (known for known in COLOURS if known in timeline.category_bytes):
        sizes = timeline.category_bytes[category]
        above = [low + sizes[point] for low, point in zip(below, points, strict=True)]
        # Memory changes at an event and stays: each edge is a staircase.
        upper = _staircase(xs, [scale.y(size) for size in above])
        lower = _staircase(xs, [scale.y(size) for size in below])
        path = " ".join((*upper, *reversed(lower)))
        yield f'<polygon fill="{COLOURS[category]}" points="{path}"><title>{category.label}</title></polygon>'
        below = above


def _chosen(totals: tuple[int, ...]) -> list[int]:
    """The points worth drawing: the highest and the lowest of equal pieces."""
    whole = MemoryTimeline(np.arange(len(totals)), np.array(totals))
    chosen: list[int] = whole.reduced(NUM_POINTS).events.tolist()
    return chosen


def _staircase(xs: list[str], ys: list[str]) -> list[str]:
    corners = [f"{xs[0]},{ys[0]}"]
    for number in range(1, len(xs)):
        if ys[number] != ys[number - 1] or number == len(xs) - 1:
            corners += [f"{xs[number]},{ys[number - 1]}", f"{xs[number]},{ys[number]}"]
    return corners


def _axis(device: DeviceReport) -> Iterator[str]:
    scale = _Scale(device)
    for part in (0, 1, 2):
        size = device.peak.size_bytes * part // 2
        y = scale.y(size)
        yield f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".25"/>'
        yield f'<text x="{LEFT - 6}" y="{y}" dy=".35em" text-anchor="end">{format_bytes(size)}</text>'


def _steps(scale: _Scale, starts: dict[int, int]) -> Iterator[str]:
    """Where steps begin, each with its number; some of them, where there are many."""
    every = -(-len(starts) // NUM_STEP_LABELS) or 1
    for start, number in list(starts.items())[::every]:
        x = scale.x(start)
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="currentColor" stroke-opacity=".4"/>'
        yield f'<text x="{x}" y="{HEIGHT - 5}" dx="3">step {number}</text>'


def _peak(device: DeviceReport) -> Iterator[str]:
    scale = _Scale(device)
    yield f'<circle cx="{scale.x(device.peak.event)}" cy="{scale.y(device.peak.size_bytes)}" r="3"><title>the peak</title></circle>'


# -- the table ---------------------------------------------------------------------------------------------------------------


def _table(device: DeviceReport) -> str:
    rows = []
    shares = device.shares_at_peak
    for share in shares[:NUM_ROWS]:
        key = (
            f'<span style="display:inline-block;width:9px;height:9px;margin-right:6px;background:{COLOURS[share.category]}"></span>'
        )
        rows.append(_row(key + share.category.label, format_bytes(share.size_bytes), f"{share.fraction:.1%}"))
    rest = sum(share.size_bytes for share in shares[NUM_ROWS:])
    if rest:
        rows.append(_row("others", format_bytes(rest), f"{rest / device.peak.size_bytes:.1%}"))
    return f'<table style="border-collapse:collapse;margin:4px 0;font:inherit;color:inherit"><tbody>{"".join(rows)}</tbody></table>'


def _row(name: str, *figures: str) -> str:
    cells = [f'<td style="{_CELL}left">{name}</td>', *(f'<td style="{_CELL}right">{figure}</td>' for figure in figures)]
    return f"<tr>{''.join(cells)}</tr>"
