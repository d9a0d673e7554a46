"""What the allocator's history does not say: how much it gave for each request, and which blocks are cuBLAS's workspaces.

CUDA's allocator takes a cached block for a request and splits it, unless the rest would be small: then the program gets all of it,
and ``max_memory_allocated`` counts all of it. The history has what was asked for, and the address. With the address it is known
which cached block was taken, and the rule of splitting says the rest. Small blocks, and those of expandable segments, are always
split.

cuBLAS keeps a workspace for each thread and stream, made when it is first needed: the program's own thread one, and autograd's
another. No tensor shows them. A block of such a size is taken for a workspace only if it has no role, outlives the step that it was
born in, and is the first that does on its stream, in forward or in backward.

Sources: ``should_split`` and ``alloc_found_block`` in c10/cuda/CUDACachingAllocator.cpp; ``getChosenWorkspaceSize`` in
ATen/cuda/CublasHandlePool.cpp, and ATen/cuda/CUDABlas.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from memfit.allocator import AllocatorSettings
from memfit.allocator.settings import SMALL_REQUEST, SMALL_SEGMENT
from memfit.allocator.sizing import round_size
from memfit.record.sources.allocator.traces import State
from memfit.torch_compat.devices import chosen_cublas_workspace, chosen_cublaslt_workspace
from memfit.units import KIB, MIB


class Extents:
    """The stretches of one device's segments for large blocks: which are free, which are given, and how long each one is."""

    def __init__(self, settings: AllocatorSettings, state: State | None = None) -> None:
        self._settings = settings
        self._rounded: dict[int, int] = {}
        self._max_split = settings.max_split_bytes
        self.is_exact = state is None or state.is_exact
        """Was every stretch known that was given so far?"""
        self._starts = set(state.segments) if state is not None else set()
        self._free: dict[int, int] = {}
        self._free_by_end: dict[int, int] = {}
        self._given: dict[int, int] = {}
        if state is not None:
            for address, size in state.free.items():
                self._add_free(address, size)
            self._given = {address: held.given for address, held in state.blocks.items() if held.given > SMALL_REQUEST}

    @property
    def largest_free(self) -> int:
        """Of the large ones."""
        return max(self._free.values(), default=0)

    def add_segment(self, address: int, size: int) -> None:
        if size > SMALL_SEGMENT:
            self._starts.add(address)
            self._add_free(address, size)

    def remove_segment(self, address: int) -> None:
        if address in self._starts:
            self._starts.discard(address)
            size = self._free.pop(address, None)
            if size is not None:
                del self._free_by_end[address + size]

    def give(self, address: int, requested: int) -> int:
        """The bytes that the program got there."""
        rounded = self._rounded.get(requested)
        if rounded is None:
            rounded = self._rounded[requested] = round_size(requested, self._settings)
        if rounded <= SMALL_REQUEST or self._settings.expandable_segments:
            return rounded
        size = self._free.pop(address, None)
        if size is None or size < rounded:
            self.is_exact = False
            self._given[address] = rounded
            return rounded
        del self._free_by_end[address + size]
        if size - rounded > SMALL_REQUEST and (self._max_split is None or rounded < self._max_split):
            self._add_free(address + rounded, size - rounded)
            size = rounded
        self._given[address] = size
        return size

    def take_back(self, address: int) -> None:
        """The block there is free, and one with its free neighbours."""
        size = self._given.pop(address, None)
        if size is None:
            return
        if address not in self._starts and (before := self._free_by_end.pop(address, None)) is not None:
            size += self._free.pop(before)
            address = before
        after = address + size
        if after not in self._starts and (following := self._free.pop(after, None)) is not None:
            del self._free_by_end[after + following]
            size += following
        self._add_free(address, size)

    def _add_free(self, address: int, size: int) -> None:
        self._free[address] = size
        self._free_by_end[address + size] = address


_SMALL, _LARGE, _CUBLASLT = (4096 * 2 + 16 * 8) * KIB, 4096 * 8 * KIB, MIB


def workspace_sizes() -> frozenset[int]:
    """The sizes that such a block can have, in bytes."""
    chosen, chosen_lt = chosen_cublas_workspace(), chosen_cublaslt_workspace()
    own = {_SMALL, _LARGE} if chosen is None else {chosen}
    return frozenset(own | {_CUBLASLT if chosen_lt is None else chosen_lt})


_Block = TypeVar("_Block")


class KeptBlocks(Generic[_Block]):
    """Blocks that could be workspaces, until their step is over."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Block, tuple[int, int, bool]]] = []
        self._found: set[tuple[int, int, bool]] = set()

    def add(self, block: _Block, size: int, stream: int, *, is_backward: bool) -> None:
        key = size, stream, is_backward
        if key not in self._found:
            self._waiting.append((block, key))

    def take(self, stays: Callable[[_Block], bool]) -> Iterator[_Block]:
        """A step is over: the first of each kind that stays."""
        waiting, self._waiting = self._waiting, []
        for block, key in waiting:
            if key not in self._found and stays(block):
                self._found.add(key)
                yield block
