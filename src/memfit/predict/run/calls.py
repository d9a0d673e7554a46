"""What a call did, and how it is told from others."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from memfit.ledger.cutting import ABOUT_BLOCKS
from memfit.ledger.schema import Array
from memfit.predict.run.readings import ValueReading
from memfit.predict.run.stand_ins import Made
from memfit.predict.run.windows import LedgerWindow
from memfit.torch_compat.dispatch import tree_leaves


@dataclass(frozen=True, eq=False)
class WrittenCall:
    """What a call did to the ledger, counted from where it began, and what it gave."""

    forward: LedgerWindow
    numbers: Array
    """Shapes, strides, offsets and sizes of the tensors that it gave."""
    result: Any
    casts: tuple[tuple[weakref.ref[torch.Tensor], Made], ...]
    """Leaves, and the casts of them that autocast keeps from here on."""
    readings: tuple[ValueReading, ...] = ()
    held: frozenset[int] = frozenset()
    """The tensors among the arguments that the graph holds."""
    backward: Backward | None = None
    with_output: tuple[tuple[int, int], ...] = ()
    """Places among the outputs, and blocks that the graph of each holds alone: where it goes unused, they go with it."""
    lasting: tuple[tuple[weakref.ref[torch.UntypedStorage], int], ...] = ()
    """Storages that were there before and are resized, and the size at which it began and ended: engines gather weights in them."""

    def is_like(self, other: WrittenCall) -> bool:
        return bool(self.shape == other.shape and np.array_equal(self.sizes, other.sizes))

    def finds_its_storages(self) -> bool:
        """Are the storages that it resizes as large as when it was watched?"""
        return all((storage := reference()) is not None and int(storage.nbytes()) == size for reference, size in self.lasting)

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """Everything but sizes and times."""
        kinds = [leaf if isinstance(leaf, Made) else repr(leaf) for leaf in tree_leaves(self.result)]
        backward = () if self.backward is None else self.backward.shape
        return (
            self.forward.digest,
            tuple(kinds),
            tuple(made for _, made in self.casts),
            self.held,
            self.with_output,
            self.outcomes,
            backward,
        )

    @cached_property
    def sizes(self) -> Array:
        """All numbers that may depend on the sizes of its arguments."""
        parts = [self.forward.size, self.numbers]
        if self.backward is not None:
            parts += [self.backward.window.size, self.backward.numbers]
        return np.concatenate(parts)

    @cached_property
    def are_exact(self) -> Array:
        """Which of the numbers decide about memory; the others say how much modules were given and gave."""
        parts = [np.isin(self.forward.kind, ABOUT_BLOCKS), np.ones(len(self.numbers), dtype=bool)]
        if self.backward is not None:
            parts += [np.isin(self.backward.window.kind, ABOUT_BLOCKS), np.ones(len(self.backward.numbers), dtype=bool)]
        return np.concatenate(parts)

    def resized(self, sizes: Array, forward: LedgerWindow, backward: LedgerWindow | None) -> WrittenCall:
        """The same with these numbers, and with the times of other windows like its own."""
        ends = np.cumsum([len(self.forward.size), len(self.numbers)])
        of_forward, numbers, rest = np.split(sizes, ends)
        of_backward = None
        if self.backward is not None and backward is not None:
            window, own = np.split(rest, [len(self.backward.window.size)])
            of_backward = replace(self.backward, window=backward.with_sizes(window), numbers=own)
        return replace(self, forward=forward.with_sizes(of_forward), numbers=numbers, backward=of_backward)

    @property
    def outcomes(self) -> tuple[Any, ...]:
        """The values that were read."""
        return tuple(reading.outcome for reading in self.readings)

    @property
    def outputs(self) -> list[Made]:
        return [leaf for leaf in tree_leaves(self.result) if isinstance(leaf, Made)]


@dataclass(frozen=True, eq=False)
class Backward:
    """What the part of backward did that belongs to a call."""

    window: LedgerWindow
    numbers: Array
    """Of the gradients that it made."""
    incoming: tuple[bool, ...]
    """Of each output: did a gradient come in for it?"""
    before: bytes
    """Which parameters had gradients."""
    gradients: tuple[tuple[int, Made], ...]
    """The parameters that got one, by their place among the module's, and the gradient."""

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        return (self.window.digest, self.incoming, self.before, self.gradients)
