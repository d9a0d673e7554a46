"""Where a run's requests are the same again and again, as those of training steps of one shape are.

::

    request   a+ b+ a- b- │ c+ d+ c- d- │ e+ f+ e- f- │ ...      + asks for a block, - frees it
    alike     2+ 1+ 2- 1-   2+ 1+ 2- 1-   2+ 1+ 2- 1-            blocks counted back from the next one

Once the allocator is in the same state after one of the repeats as after an earlier one, what follows is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memfit.allocator.requests import RequestKind
from memfit.ledger.schema import Array

FEWEST_REQUESTS: Final = 50_000
"""A run with fewer is served before repeats are found."""
FEWEST_REPEATS: Final = 8
ANCHORS: Final = (1 / 2, 1 / 4, 3 / 4, 1 / 8, 7 / 8)
"""Where in the run repeats are looked for."""
MOST_CANDIDATES: Final = 64
"""How many distances to a request like the one at an anchor are tried."""
ALIKE: Final = 16
"""So many requests in a row must be like those from the anchor on for their distance to be tried."""


@dataclass(frozen=True)
class RepeatedStretch:
    """Requests ``first`` to ``first + period * num_repeats``."""

    first: int
    period: int
    num_repeats: int
    first_block: int
    """The first block that is asked for in it."""
    blocks_of_each: int
    """How many blocks each repeat asks for."""


def find_stretches(
    kind: Array, block: Array, columns: tuple[Array, ...], *, fewest_requests: int = FEWEST_REQUESTS
) -> tuple[RepeatedStretch, ...]:
    """The longest repeats around a few places of the run, in their order.

    None where a block is in use on other streams after it was freed, or blocks are not numbered in the order in which they are
    asked for.
    """
    allocates = kind == RequestKind.ALLOC
    asked = block[allocates]
    late = (kind == RequestKind.FREE_REQUESTED) | (kind == RequestKind.FREE_COMPLETED)
    if len(kind) < fewest_requests or late.any() or not np.array_equal(asked, np.arange(len(asked))):
        return ()
    next_block = np.cumsum(allocates) - allocates
    back = np.where(kind == RequestKind.FREE, next_block - block, 0)
    rows = _Rows((kind, back, *columns))
    found: list[tuple[int, int, int]] = []
    for share in ANCHORS:
        anchor = int(share * len(kind))
        if not any(first <= anchor < end for first, end, _ in found):
            first, end, period = rows.repeats_around(anchor)
            clear = max((stop for _, stop, _ in found if stop <= anchor), default=0)
            first = max(first, clear)
            end = min(end, min((start for start, _, _ in found if start > anchor), default=len(kind)))
            if period and end - first >= FEWEST_REPEATS * period:
                found.append((first, first + (end - first) // period * period, period))
    return tuple(
        RepeatedStretch(
            first, period, (end - first) // period, int(next_block[first]), int(np.count_nonzero(allocates[first : first + period]))
        )
        for first, end, period in sorted(found)
    )


class _Rows:
    """Requests without what tells one repeat from another."""

    def __init__(self, columns: tuple[Array, ...]) -> None:
        self._columns = columns
        self._mixed = np.zeros(len(columns[0]), dtype=np.uint64)
        """A number for each row: equal rows have equal ones."""
        for column in columns:
            self._mixed *= np.uint64(0x9E3779B97F4A7C15)
            self._mixed ^= column.astype(np.uint64)

    def repeats_around(self, anchor: int) -> tuple[int, int, int]:
        """First request, end and period of the repeats that the request at ``anchor`` is among; a period of 0 if there are none."""
        window = self._mixed[anchor : anchor + ALIKE]
        starts = anchor + 1 + np.flatnonzero(self._mixed[anchor + 1 :] == window[0])[: 256 * MOST_CANDIDATES]
        starts = starts[starts + ALIKE <= len(self._mixed)]
        for after in range(1, len(window)):
            starts = starts[self._mixed[starts + after] == window[after]]
        best = (anchor, anchor, 0)
        for start in starts[:MOST_CANDIDATES].tolist():
            period = start - anchor
            if start + period <= len(self._mixed) and self._are_equal(anchor, start, period):
                first, end = self._extent(anchor, period)
                if end - first > best[1] - best[0]:
                    best = (first, end, period)
                if end >= anchor + (len(self._mixed) - anchor) // 2:
                    break
        return best

    def _are_equal(self, one: int, other: int, count: int) -> bool:
        return all(np.array_equal(column[one : one + count], column[other : other + count]) for column in self._columns)

    def _extent(self, anchor: int, period: int) -> tuple[int, int]:
        differs = np.zeros(len(self._mixed) - period, dtype=bool)
        for column in self._columns:
            differs |= column[period:] != column[:-period]
        where = np.flatnonzero(differs)
        place = int(np.searchsorted(where, anchor))
        first = int(where[place - 1]) + 1 if place else 0
        end = int(where[place]) + period if place < len(where) else len(self._mixed)
        return first, end
