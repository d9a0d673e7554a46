"""Memory in use over the events of a run, and its maximum in each of many ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.ledger import Category, Ledger
from memfit.ledger.schema import Array

Breakdown = dict[Category, int]
"""Bytes by category; a category that holds nothing is not in it."""


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """Bytes in use on one device: ``totals[i]`` from event ``events[i]`` until the next event in the list.

    The first entry is event -1 with 0 bytes: nothing was in use before the run.
    """

    events: Array
    totals: Array

    @classmethod
    def from_deltas(cls, events: Array, deltas: Array) -> MemoryTimeline:
        return cls(np.concatenate(([-1], events)), np.concatenate(([0], np.cumsum(deltas))))

    def at(self, events: Array) -> Array:
        """The bytes in use right after each of ``events``."""
        return self.totals[self._positions(events)]

    def highest_between(self, first: Array, last: Array) -> Array:
        """Per range of events, both ends included: the event with most memory in use. The level at the beginning counts too."""
        where = range_maxima(self.totals, self._positions(first), self._positions(last) + 1)
        return np.maximum(self.events[where], first)

    def reduced(self, num_points: int) -> MemoryTimeline:
        """At most ``num_points`` entries (3 or more), for drawing: the highest and the lowest of equal pieces, and the last."""
        num_entries, num_pieces = len(self.events), (num_points - 1) // 2
        if num_entries <= num_points:
            return self
        starts = np.arange(num_pieces) * num_entries // num_pieces
        extremes = (first_maxima(self.totals, starts), first_maxima(-self.totals, starts), [num_entries - 1])
        kept = np.unique(np.concatenate(extremes))
        return MemoryTimeline(self.events[kept], self.totals[kept])

    def highest_of(self, num_pieces: int) -> MemoryTimeline:
        """The first highest entry of each of ``num_pieces`` equal pieces, and both ends; all entries where those are fewer."""
        num_entries = len(self.events)
        if num_entries <= num_pieces:
            return self
        highest = first_maxima(self.totals, np.arange(num_pieces) * num_entries // num_pieces)
        kept = np.unique(np.concatenate(([0], highest, [num_entries - 1])))
        return MemoryTimeline(self.events[kept], self.totals[kept])

    def _positions(self, events: Array) -> Array:
        return np.searchsorted(self.events, events, side="right") - 1


def trace_total(ledger: Ledger, device: int) -> MemoryTimeline:
    """All memory in use on a device."""
    events = events_on(ledger, device)
    return MemoryTimeline.from_deltas(events, ledger.deltas[events])


def trace_categories(ledger: Ledger, device: int) -> dict[Category, MemoryTimeline]:
    """Memory in use on a device, for each category that ever occurs there."""
    events = events_on(ledger, device)
    categories = ledger.categories[ledger.events.subject[events]]
    order = np.argsort(categories, kind="stable")
    present, starts = np.unique(categories[order], return_index=True)
    groups = np.split(events[order], starts[1:])
    return {
        Category(category): MemoryTimeline.from_deltas(group, ledger.deltas[group])
        for category, group in zip(present.tolist(), groups, strict=False)
    }


def breakdowns_at(ledger: Ledger, events: Array, device: int) -> list[Breakdown]:
    """Memory in use on a device right after each of ``events``, by category."""
    timelines = trace_categories(ledger, device)
    columns = [timeline.at(events).tolist() for timeline in timelines.values()]
    return [
        {category: size for category, size in zip(timelines, sizes, strict=True) if size}
        for sizes in (zip(*columns, strict=True) if columns else [()] * len(events))
    ]


def events_on(ledger: Ledger, device: int) -> Array:
    """The events that change how much memory is in use on a device."""
    events = ledger.memory_events
    here: Array = events[ledger.blocks.device[ledger.events.subject[events]] == device]
    return here


def first_maxima(values: Array, starts: Array) -> Array:
    """The position of the first maximum in each piece of ``values``. Pieces are adjacent; ``starts`` ascends from 0."""
    largest = np.maximum.reduceat(values, starts)
    lengths = np.diff(starts, append=len(values))
    candidates = np.flatnonzero(values == np.repeat(largest, lengths))
    return candidates[np.searchsorted(candidates, starts)]


def range_maxima(values: Array, starts: Array, stops: Array) -> Array:
    """The position of the first maximum in each ``values[starts[i]:stops[i]]``; no range may be empty.

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
