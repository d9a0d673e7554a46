"""A job as a grid of its mesh: each rank with the peak of the one that was predicted for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from memfit.units import format_bytes
from memfit.views.html.markup import Markup, element, join
from memfit.views.html.runs import Run
from memfit.views.words.moments import count

MOST_ROWS = 64
"""The longest first axis that is drawn: a longer table would be unreadable."""


def mesh_section(runs: list[Run]) -> Markup:
    """A row for each place on the first axis; neighbours that are alike share a cell. Nothing where runs are not of one job."""
    axes = _axes(runs)
    if not axes or axes[0][1] > MOST_ROWS:
        return join()
    like = _who_is_like_whom(runs)
    if like is None:
        return join()
    (name, num_rows), *others = axes
    in_a_row = len(like) // num_rows
    rows = [_row(f"{name} {number}", number * in_a_row, like[number * in_a_row :][:in_a_row], runs) for number in range(num_rows)]
    across = " x ".join(f"{axis} {size}" for axis, size in others) or "1"
    heading = element("th", f"{count(in_a_row, 'rank')}: {across}", colspan=_widest(rows))
    head = element("thead", element("tr", element("th", name), heading))
    caption = element("caption", f"The job's mesh: {' x '.join(f'{axis} {size}' for axis, size in axes)}")
    body = element("tbody", *(element("tr", *cells) for cells in rows))
    grid = element("table", caption, head, body, class_="mesh")
    return element("section", element("h2", "Every rank"), grid, aria_label="Every rank")


def _axes(runs: list[Run]) -> list[tuple[str, int]]:
    """Of the one job that all runs are of, or nothing."""
    said = {(run.ledger.info.mesh, run.ledger.info.world_size) for run in runs}
    if len(said) != 1:
        return []
    ((mesh, world_size),) = said
    pairs = [part.partition("=") for part in mesh.split(",")] if mesh else []
    axes = [(name, int(size)) for name, _, size in pairs if size.isdigit() and int(size) > 0]
    return axes if len(axes) == len(pairs) and math.prod(size for _, size in axes) == world_size else []


def _who_is_like_whom(runs: list[Run]) -> list[int] | None:
    """For each rank the number of its run on the page, -1 for those that nothing is known of; ``None`` where runs do not say."""
    like = [-1] * runs[0].ledger.info.world_size
    for number, run in enumerate(runs):
        for first, last in _ranges(run.ledger.info.stands_for):
            if not 0 <= first <= last < len(like):
                return None
            like[first : last + 1] = [number] * (last + 1 - first)
    return like if any(number >= 0 for number in like) else None


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            yield int(first), int(last or first)


def _row(label: str, first: int, like: list[int], runs: list[Run]) -> list[Markup]:
    cells, rank = [element("th", label, scope="row")], first
    for number, same in groupby(like):
        size = len(list(same))
        cells.append(_cell(rank, size, runs[number], number) if number >= 0 else element("td", "–"))
        rank += size
    return cells


def _cell(first: int, size: int, run: Run, number: int) -> Markup:
    ranks = f"rank {first}" if size == 1 else f"ranks {first:,} to {first + size - 1:,}"
    words = f"{ranks}: {format_bytes(run.device.peak.size_bytes)}"
    fits = run.verdict is None or run.verdict.fits
    button = element("button", words, type="button", class_="tab", data_run=number, aria_controls=f"run-{number}")
    return element("td", button, class_="fits" if fits else "fails")


def _widest(rows: list[list[Markup]]) -> int:
    return max(len(cells) for cells in rows) - 1
