"""The same run with activation checkpointing.

::

    as it was    | forward of layers.3: a b c out |  ...  | its backward: uses c b a |
    checkpointed | forward: a b c out, frees a b c |  ...  | its forward again: a b c | its backward: uses c b a |

The units are the repeated layers: modules of one class under one parent, that have submodules, and are in no other such unit. What
a unit's forward made and backward still needed is freed when that forward ends, except what it returned; when the unit's backward
begins, what its forward asked for is asked for again, in the same order, up to the last that backward needs. Real
backward lets go of what was made again a little sooner than of what was saved: what comes out here is at most a little too much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from memfit.allocator import RequestKind
from memfit.explain.variants import Variant
from memfit.ledger import Category, Ledger, Phase
from memfit.ledger.schema import Array

_MADE_AGAIN: Final = (Category.ACTIVATION, Category.FORWARD_TEMPORARY)
"""What a recomputation makes again; the buffers of FSDP's collectives, for one, it does not."""


def checkpoint(variant: Variant) -> Variant | None:
    """With every repeated layer checkpointed; ``None`` if there is none, or nothing to gain."""
    ledger = variant.ledger
    if (ledger.scopes.phase == Phase.RECOMPUTE).any():
        return None  # it is checkpointed already
    passes = _passes(ledger, find_units(ledger))
    editor = _Editor(variant)
    for unit in passes:
        editor.checkpoint(unit)
    return editor.result() if editor.num_dropped else None


def find_units(ledger: Ledger) -> Array:
    """The modules that checkpointing is usually applied to, each of them outside all others."""
    parent, kind = ledger.modules.parent, ledger.modules.kind
    has_children = np.zeros(len(parent) + 1, dtype=bool)
    has_children[parent] = True
    _, group, size = np.unique(np.stack((parent, kind)), axis=1, return_inverse=True, return_counts=True)
    repeated = (size[group.ravel()] > 1) & has_children[:-1] & (parent >= 0)
    inside = np.zeros(len(parent), dtype=bool)
    for module, above in enumerate(parent.tolist()):  # parents come before children
        inside[module] = above >= 0 and (repeated[above] or inside[above])
    return np.flatnonzero(repeated & ~inside)


@dataclass(frozen=True)
class _Pass:
    """One forward of a unit, by its events; ``backward`` is where its backward began, or the end of all events."""

    enter: int
    exit: int
    backward: int


def _passes(ledger: Ledger, units: Array) -> list[_Pass]:
    end, found = len(ledger.events), []
    for unit in units.tolist():
        own = np.flatnonzero(ledger.scopes.module == unit)
        forwards = own[ledger.scopes.phase[own] == Phase.FORWARD]
        if not len(forwards):
            continue  # only its parameters and its backward were seen
        begun = np.append(ledger.scope_enter[own[ledger.scopes.phase[own] == Phase.BACKWARD]], end)
        following = np.append(ledger.scope_enter[forwards][1:], end).tolist()
        for scope, next_enter in zip(forwards.tolist(), following, strict=True):
            left = int(ledger.scope_exit[scope])
            backward = int(begun[np.searchsorted(begun, left)])
            # A forward that runs again before its backward (in an evaluation, in a pipeline) is left as it is.
            if left < end and (next_enter == end or backward < next_enter):
                found.append(_Pass(int(ledger.scope_enter[scope]), left, backward))
    return found


class _Editor:
    """Changes the requests pass by pass."""

    def __init__(self, variant: Variant) -> None:
        self._variant, requests = variant, variant.requests
        self._event, self._kind, self._size = requests.event, requests.kind, requests.size
        self._block = requests.block.copy()
        self._kept = np.ones(len(requests), dtype=bool)
        self._free_row = np.full(requests.num_blocks, len(requests), dtype=np.int64)
        frees = np.flatnonzero(requests.kind == RequestKind.FREE)
        self._free_row[requests.block[frees]] = frees
        self._sources = [variant.source]
        self._num_blocks = requests.num_blocks
        self._added: list[tuple[Array, Array, Array, int]] = []
        """Rows to copy, their kind and block, and the event at which they happen."""
        self.num_dropped = 0

    def checkpoint(self, unit: _Pass) -> None:
        rows, first = self._rows_inside(unit)
        born = self._block[rows[self._kind[rows] == RequestKind.ALLOC]]
        freed = self._freed(born)
        saved = born[(freed > unit.exit) & (self._variant.categories[born] == Category.ACTIVATION)]
        dropped = saved[~self._returned(unit, saved, first)]
        self.num_dropped += len(dropped)
        self._add_frees(dropped, dropped, unit.exit)
        freed_row = self._free_row[dropped]
        early = freed_row[(self._freed(dropped) <= unit.backward) & (freed_row < len(self._kept))]
        self._kept[early] = False
        if len(dropped) and unit.backward < len(self._variant.ledger.events):
            # Torch stops a recomputation as soon as it has what backward needs.
            again = rows[rows <= first[dropped].max()]
            self._recompute(unit, again, self._block[again[self._kind[again] == RequestKind.ALLOC]], dropped)

    def _rows_inside(self, unit: _Pass) -> tuple[Array, Array]:
        """The requests of one forward for blocks that it made, and per block the request that made it."""
        start, stop = np.searchsorted(self._event, (unit.enter, unit.exit), side="right").tolist()
        rows = np.arange(start, stop)
        first = np.full(self._variant.requests.num_blocks, -1, dtype=np.int64)
        made = rows[(self._kind[rows] == RequestKind.ALLOC) & np.isin(self._variant.categories[self._block[rows]], _MADE_AGAIN)]
        first[self._block[made]] = made
        return rows[(self._block[rows] >= 0) & (first[self._block[rows]] >= 0)], first

    def _freed(self, blocks: Array) -> Array:
        """The events at which blocks were freed."""
        return np.append(self._event, len(self._variant.ledger.events))[self._free_row[blocks]]

    def _returned(self, unit: _Pass, saved: Array, first: Array) -> Array:
        """Which of the blocks the forward returned: the last one of just that size, or the last ones that are no more than that."""
        size, returned = self._size[first[saved]], int(self._variant.ledger.events.size[unit.exit])
        exact = np.flatnonzero(size == returned)
        if len(exact):
            return np.asarray(np.arange(len(saved)) == exact[-1])
        return np.asarray(np.cumsum(size[::-1])[::-1] <= returned)

    def _recompute(self, unit: _Pass, rows: Array, born: Array, dropped: Array) -> None:
        copy = np.full(self._variant.requests.num_blocks, -1, dtype=np.int64)
        copy[born] = self._num_blocks + np.arange(len(born))
        self._num_blocks += len(born)
        self._sources.append(self._variant.source[born])
        self._added.append((rows, self._kind[rows], copy[self._block[rows]], unit.backward))
        needed = dropped[self._freed(dropped) > unit.backward]
        unneeded = born[(self._free_row[born] > rows[-1]) & ~np.isin(born, needed)]
        self._add_frees(unneeded, copy[unneeded], unit.backward)
        freed_later = needed[self._free_row[needed] < len(self._kept)]
        self._block[self._free_row[freed_later]] = copy[freed_later]

    def _add_frees(self, like: Array, blocks: Array, event: int) -> None:
        rows = np.minimum(self._free_row[like], len(self._kept) - 1)
        self._added.append((rows, np.full(len(blocks), int(RequestKind.FREE)), blocks, event))

    def result(self) -> Variant:
        requests, kept = self._variant.requests, np.flatnonzero(self._kept)
        rows = np.concatenate([kept, *(rows for rows, _, _, _ in self._added)])
        kind = np.concatenate([self._kind[kept], *(kind for _, kind, _, _ in self._added)])
        block = np.concatenate([self._block[kept], *(block for _, _, block, _ in self._added)])
        event = np.concatenate([self._event[kept], *(np.full(len(kind), event) for _, kind, _, event in self._added)])
        order = np.argsort(event, kind="stable")
        edited = requests.take(
            rows[order],
            kind=kind[order],
            block=block[order],
            size=np.where(kind == RequestKind.ALLOC, self._size[rows], 0)[order],
            event=event[order],
            num_blocks=self._num_blocks,
        )
        return replace(self._variant, requests=edited, source=np.concatenate(self._sources))
