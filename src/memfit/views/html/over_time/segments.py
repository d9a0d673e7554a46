"""The allocator's segments over the step with the peak, with what lies where: what is reserved and not in use is seen as gaps.

Segments lie end to end in rows of one drawing, each at the same place at every moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.allocator import Replay, SegmentState
from memfit.ledger import Category, Ledger, moments_at
from memfit.units import format_bytes
from memfit.views.exports.frames import BlockIndex
from memfit.views.html.markup import Markup, element, join, table
from memfit.views.html.packing import Texts
from memfit.views.html.runs import Run
from memfit.views.words.moments import count

NUM_MOMENTS: Final = 16
NUM_ROWS: Final = 20
WIDTH: Final = 4000
"""Of a row, in its own units."""
SMALL: Final = WIDTH // 400
"""Neighbours of one kind below this width are drawn as one."""
MOST_LISTED: Final = 20
FREE: Final = "free"


@dataclass
class _Stretch:
    """A stretch of the drawing, from its first row on."""

    start: int
    size: int
    kind: str
    text: str


def segments_section(run: Run, number: int) -> Markup:
    """The place where the script draws, and the segments at the peak as a table; nothing where there is no allocator."""
    if run.replayed is None:
        return join()
    caption = "The segments at the peak as a table"
    segments = sorted(run.replayed.segments_at(_request_at(run.replayed, run.device.peak.event)), key=lambda each: -each.size)
    rows = [
        (
            format_bytes(segment.size),
            format_bytes(segment.active_bytes),
            format_bytes(segment.inactive_bytes),
            f"{len(segment.blocks):,}",
            "of 1 MiB and less" if segment.small else "larger",
        )
        for segment in segments[:MOST_LISTED]
    ]
    listed = f"The largest of {count(len(segments), 'segment')}."
    hint = (
        "What the allocator has from the GPU, end to end in rows, and what lies in it: gaps are reserved, and not in use. A tick "
        "marks where a segment begins. Move the slider through the step with the peak."
    )
    return element(
        "section",
        element("h2", "Segments of the allocator"),
        element("p", hint, class_="quiet"),
        element("div", class_="segments", data_segments=number),
        element(
            "details",
            element("summary", caption),
            table(caption, ("size>", "in use>", "free>", "pieces>", "for requests"), rows),
            element("p", listed, class_="quiet"),
        ),
        class_="segments-section",
        aria_label="Segments of the allocator",
    )


def pack_segments(run: Run, texts: Texts) -> dict[str, Any] | None:
    """Pieces, each kept once, as ``[row, from, width, kind, text]``; which of them there are at each moment, and words for it."""
    if run.replayed is None:
        return None
    events = _moments(run)
    states = [*run.replayed.segments_over(_request_at(run.replayed, event) for event in events)]
    places, whole = _places(states)
    row_bytes = max(-(-whole // NUM_ROWS), 1)
    kinds = _Kinds(run.ledger, run.replayed)
    pieces: dict[tuple[int | str, ...], int] = {}
    of_moment = []
    for segments in states:
        drawn = [piece for segment in segments for piece in _pieces(segment, places[segment.address], kinds, row_bytes)]
        cut = [part for piece in drawn for part in _cut(piece, row_bytes, texts)]
        of_moment.append([pieces.setdefault(part, len(pieces)) for part in cut])
    words = [
        _words(segments, where.label) for segments, where in zip(states, moments_at(run.ledger, np.array(events)), strict=True)
    ]
    return {
        "width": WIDTH,
        "rows": NUM_ROWS,
        "rowText": f"a row is {format_bytes(row_bytes)}",
        "pieces": [[*piece] for piece in pieces],
        "moments": of_moment,
        "momentTexts": [texts.number(word) for word in words],
        "peak": events.index(max(run.device.peak.event, 0)),
    }


def _moments(run: Run) -> list[int]:
    """Events of the step with the peak, equally far apart, and the peak."""
    peak, bounds = max(run.device.peak.event, 0), [0, *run.ledger.step_starts.tolist(), len(run.ledger.events)]
    place = int(np.searchsorted(bounds[:-1], peak, side="right"))
    spread = np.linspace(bounds[place - 1], bounds[place] - 1, NUM_MOMENTS).astype(np.int64).tolist()
    return sorted({*spread, peak})


def _request_at(replayed: Replay, event: int) -> int:
    """How many requests were made up to an event."""
    return min(int(np.searchsorted(replayed.requests.event, event, side="right")), replayed.num_served)


def _places(states: list[list[SegmentState]]) -> tuple[dict[int, int], int]:
    """Where each segment begins in the drawing, in the order in which they appear, and how long all are."""
    sizes: dict[int, int] = {}
    for segments in states:
        for segment in sorted(segments, key=lambda each: each.address):
            sizes[segment.address] = max(sizes.get(segment.address, 0), segment.size)
    ends = np.cumsum([0, *sizes.values()]).tolist()
    return dict(zip(sizes, ends, strict=False)), ends[-1]


class _Kinds:
    """What the allocator's blocks are."""

    def __init__(self, ledger: Ledger, replayed: Replay) -> None:
        self._facts = BlockIndex(ledger)
        self._keys = {category.label: category.name.lower() for category in Category}
        subjects = ledger.events.subject[replayed.requests.event].tolist()
        self._subject = dict(zip(replayed.requests.block.tolist(), subjects, strict=True))

    def of(self, block: int, size: int) -> tuple[str, str]:
        """The category's key, and words."""
        facts = self._facts[self._subject[block]]
        whose = facts.name or (facts.modules[0] if facts.modules else "no module")
        return self._keys[facts.category], f"{format_bytes(size)}, {facts.category}, {whose}, {facts.op}"


def _pieces(segment: SegmentState, start: int, kinds: _Kinds, row_bytes: int) -> Iterator[_Stretch]:
    """The blocks of a segment; small neighbours of one kind are one piece."""
    small, held = SMALL * row_bytes // WIDTH, None
    yield _Stretch(
        start, 0, "begin", f"a segment of {format_bytes(segment.size)}, {format_bytes(segment.inactive_bytes)} of it free"
    )
    for block in segment.blocks:
        kind, text = kinds.of(block.number, block.size) if block.number >= 0 else (FREE, f"{format_bytes(block.size)} free")
        if held is not None and held.kind == kind and held.size < small and block.size < small:
            held = _Stretch(
                held.start, held.size + block.size, kind, f"{format_bytes(held.size + block.size)} in small blocks, {kind}"
            )
        else:
            if held is not None:
                yield held
            held = _Stretch(start, block.size, kind, text)
        start += block.size
    if held is not None:
        yield held


def _cut(piece: _Stretch, row_bytes: int, texts: Texts) -> Iterator[tuple[int | str, ...]]:
    """A piece, row by row. What is narrower than a unit is left out."""
    text, start, left = texts.number(piece.text), piece.start, piece.size
    if not left:
        yield start // row_bytes, round(WIDTH * (start % row_bytes) / row_bytes), 0, piece.kind, text
    while left > 0:
        row, offset = divmod(start, row_bytes)
        here = min(left, row_bytes - offset)
        begin, end = round(WIDTH * offset / row_bytes), round(WIDTH * (offset + here) / row_bytes)
        if end > begin:
            yield row, begin, end - begin, piece.kind, text
        start, left = start + here, left - here


def _words(segments: list[SegmentState], where: str) -> str:
    reserved = sum(segment.size for segment in segments)
    free = sum(segment.inactive_bytes for segment in segments)
    return f"{where}: {count(len(segments), 'segment')}, {format_bytes(reserved)} reserved, {format_bytes(free)} of it not in use"
