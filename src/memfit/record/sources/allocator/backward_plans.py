"""Where backward is, in steps in which the engine does not tell.

A training repeats itself. In the first steps, hooks tell when the engine comes to the nodes at the borders of modules. Of such a
pass a plan is kept: before which of its allocations the engine moved to which module. A later pass whose forward called the same
modules in the same order, and which has as many allocations, is placed by that plan, without a hook. A pass without a plan is of no
module, is counted, and brings the hooks back.

Plans outlive a recording: a model that was recorded before, and whose backward could be placed, is spared the costly first steps.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np
from torch import nn

from memfit.allocator.sources.entries import ALLOC
from memfit.ledger.schema import Array
from memfit.record.sources.allocator.marks import MarkKind
from memfit.record.sources.allocator.traces import Trace

MOST_PASSES: Final = 1000

Moves = list[tuple[int, int]]
"""Pairs: the number of allocations of a backward pass after which the engine moves, and the boundary of modules that it moves to,
counted from where forward began."""


class KnownModels:
    """Models by identity, none of which is kept alive, and the moves of backward passes."""

    def __init__(self) -> None:
        self._placed: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._quiet: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._passes: OrderedDict[tuple[int, int], Moves] = OrderedDict()

    def is_placed(self, root: nn.Module) -> bool:
        """Could the backward of this model be placed without hooks, in the last recording of it?"""
        return self._placed.get(id(root)) is root

    def is_quiet(self, module: nn.Module) -> bool:
        """Does this module, of a model that was recorded, allocate nothing itself?"""
        return self._quiet.get(id(module)) is module

    def learn(self, roots: Iterable[nn.Module], quiet: Iterable[nn.Module]) -> None:
        """A recording is over that placed every backward of these models."""
        self._placed.update((id(root), root) for root in roots)
        self._quiet.update((id(module), module) for module in quiet)

    def forget(self, roots: Iterable[nn.Module]) -> None:
        """A backward of one of these models could not be placed."""
        for root in roots:
            self._placed.pop(id(root), None)

    def moves(self, forward: int, num_allocations: int) -> Moves | None:
        """Of a pass with as many allocations, after a forward with this hash; ``None`` where no such pass was seen."""
        return self._passes.get((forward, num_allocations))

    def learn_pass(self, forward: int, num_allocations: int, moves: Moves) -> None:
        self._passes[forward, num_allocations] = moves
        self._passes.move_to_end((forward, num_allocations))
        if len(self._passes) > MOST_PASSES:
            self._passes.popitem(last=False)


KNOWN_MODELS: Final = KnownModels()


class BackwardPlans:
    """Learns from passes that are told of, and places the others."""

    def __init__(self) -> None:
        self._forward = 0
        self._base = 0
        self._is_learning = False
        self._moves: Moves = []
        self._plan: Moves = []
        self._next = 0
        self._num_allocations = 0
        self._expected: dict[int, int] = {}
        self.num_placed = self.num_unplaced = 0
        """Passes that were not announced: those that a plan fits, and those that none does."""
        self.has_inner_passes = False
        """Was there a pass inside of a pass? These are placed by hooks alone."""

    def look_ahead(self, marks: Array, first_mark: int, found: Sequence[Trace]) -> None:
        """Counts the allocations of each pass in a window, by the number of the mark that begins it."""
        allocated = np.sort(np.concatenate([trace.mark[trace.action == ALLOC] for trace in found] or [np.empty(0, dtype=np.int64)]))
        self._expected, opened = {}, []
        for index in np.flatnonzero((marks[:, 0] == MarkKind.BACKWARD) | (marks[:, 0] == MarkKind.BACKWARD_ENDS)).tolist():
            if marks[index, 0] == MarkKind.BACKWARD:
                opened.append(first_mark + index)
            elif opened:
                begin = opened.pop()
                first, last = np.searchsorted(allocated, (begin, first_mark + index))
                self._expected[begin] = int(last - first)

    def note_forward(self, module: Hashable) -> None:
        """A module is called, outside of backward; it is named the same in every recording of its model."""
        self._forward = hash((self._forward, module))

    def begin_pass(self, mark: int, *, is_told: bool, is_inner: bool) -> None:
        if is_inner:
            self.has_inner_passes = True
            return
        self._num_allocations = self._next = 0
        self._is_learning, self._moves, self._plan = is_told, [], []
        if not is_told:
            plan = KNOWN_MODELS.moves(self._forward, self._expected.get(mark, -1))
            self.num_unplaced += plan is None
            self.num_placed += plan is not None
            self._plan = plan or []

    def note_move(self, place: int) -> None:
        """The engine came to a boundary of modules."""
        if self._is_learning:
            self._moves.append((self._num_allocations, place - self._base))

    def place_of_next(self) -> int | None:
        """Something is about to be allocated: the boundary to move to first, ``None`` to stay."""
        place = None
        while self._next < len(self._plan) and self._plan[self._next][0] <= self._num_allocations:
            place = self._plan[self._next][1] + self._base
            self._next += 1
        self._num_allocations += 1
        return place

    def end_pass(self, num_boundaries: int) -> None:
        """A pass is over that was in no other; forward begins anew."""
        if self._is_learning:
            KNOWN_MODELS.learn_pass(self._forward, self._num_allocations, self._moves)
        self.begin_anew(num_boundaries)

    def begin_anew(self, num_boundaries: int = 0) -> None:
        """A forward begins, after ``num_boundaries`` module boundaries. What was under way is given up."""
        self._is_learning, self._plan = False, []
        self._forward, self._base = 0, num_boundaries
