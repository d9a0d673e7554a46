"""The largest value in each of many overlapping ranges, without walking through any of them."""

from __future__ import annotations

import numpy as np

from memfit.ledger.schema import Array


def first_maxima(values: Array, starts: Array) -> Array:
    """Where each piece of ``values`` has its first largest value. Pieces lie end to end; ``starts`` rises from 0."""
    largest = np.maximum.reduceat(values, starts)
    lengths = np.diff(starts, append=len(values))
    candidates = np.flatnonzero(values == np.repeat(largest, lengths))
    return candidates[np.searchsorted(candidates, starts)]


def range_maxima(values: Array, starts: Array, stops: Array) -> Array:
    """Where each ``values[starts[i]:stops[i]]`` has its first largest value; no range may be empty.

    The values are cut wherever a range begins or ends. Of 2, 4, 8, ... neighbouring pieces the best is found from two halves, and
    a range is covered by two such runs of the largest power of two that fits into it.
    """
    cuts = np.unique(np.concatenate(([0], starts, stops)))
    cuts = cuts[cuts < len(values)]
    best = first_maxima(values, cuts)
    first, last = np.searchsorted(cuts, starts), np.searchsorted(cuts, stops)
    level = np.frexp(last - first)[1] - 1
    found = np.empty(len(starts), dtype=np.int64)
    for k in range(level.max(initial=-1) + 1):
        width = 2**k
        here = level == k
        found[here] = _larger(values, best[first[here]], best[last[here] - width])
        best = _larger(values, best[:-width], best[width:])
    return found


def _larger(values: Array, left: Array, right: Array) -> Array:
    return np.where(values[right] > values[left], right, left)
