"""Memory in use at selected moments of a run, enough to draw it as a whole and in detail.

::

    the run       ────────────────────────────────────────────   every event, maybe millions
    zoom level 0  |      |      |      |      |      |      |    few moments, for the whole of it
    zoom level 1  |  |   | |    | |  | |    | |   |  | | |  |    more, for a part of it
    ...

Each level has the highest moment of equal pieces, and every requested moment: a peak is on all levels, and a level with as many
pieces as the run has events is the run itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import events_on, trace_categories, trace_total
from memfit.ledger import Category, Ledger
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Columns with one entry per moment. A moment is right after an event."""

    events: Array
    time_ns: Array
    totals: Array
    category_bytes: dict[Category, Array]
    levels: tuple[Array, ...]
    """Per zoom level, the coarsest first: the moments in it."""


def choose_moments(ledger: Ledger, device: int, counts: Sequence[int], keep: Sequence[int] = ()) -> Moments:
    """Moments for drawing a device's memory: about ``counts[i]`` on zoom level i, and the events in ``keep`` on every level."""
    timeline = trace_total(ledger, device)
    always = np.unique(np.array([*keep, 0, len(ledger.events) - 1], dtype=np.int64))
    levels = [np.union1d(timeline.highest_of(count).events, always) for count in counts]
    levels = [level[level >= 0] for level in levels]
    events = np.unique(np.concatenate(levels))
    return Moments(
        events=events,
        time_ns=ledger.events.time_ns[events],
        totals=timeline.at(events),
        category_bytes={category: line.at(events) for category, line in trace_categories(ledger, device).items()},
        levels=tuple(np.searchsorted(events, level) for level in levels),
    )


def largest_live(ledger: Ledger, device: int, events: Array, count: int) -> Iterator[list[tuple[int, int]]]:
    """The largest blocks and their sizes right after each of ``events``, which must be ascending; largest first."""
    changes = events_on(ledger, device)
    stops = np.searchsorted(changes, events, side="right").tolist()
    blocks, deltas = ledger.events.subject[changes].tolist(), ledger.deltas[changes].tolist()
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    done = 0
    for stop in stops:
        for block, delta in zip(blocks[done:stop], deltas[done:stop], strict=True):
            held[block] = size = held.get(block, 0) + delta
            if size and delta:
                heapq.heappush(heap, (-size, block))
        done = max(done, stop)
        yield _top(heap, held, count)


def _top(heap: list[tuple[int, int]], held: dict[int, int], count: int) -> list[tuple[int, int]]:
    """The first valid entries of the heap; drops outdated and repeated ones on the way."""
    found: list[tuple[int, int]] = []
    while heap and len(found) < count:
        entry = heapq.heappop(heap)
        if held[entry[1]] == -entry[0] and (not found or found[-1] != (entry[1], -entry[0])):
            found.append((entry[1], -entry[0]))
    for block, size in found:
        heapq.heappush(heap, (-size, block))
    return found
