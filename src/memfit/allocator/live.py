"""The allocator of a GPU of a certain size, for one request at a time while a run goes on.

``replay`` answers when a run is over. Where the run itself must notice that memory has run out, and may go on after that, each
request is served when it comes.
"""

from __future__ import annotations

from memfit.allocator.engine import CachingAllocator, Rules
from memfit.allocator.engine.blocks import FreeList, PoolBlock
from memfit.allocator.replaying import OutOfMemory
from memfit.allocator.requests import RequestKind, Requests
from memfit.allocator.settings import SMALL_REQUEST, AllocatorSettings
from memfit.allocator.sizing import round_size, segment_size


class LiveAllocator:
    """Serves requests for blocks, which the caller numbers. After a refusal its cache has been given back, as CUDA's has."""

    def __init__(self, settings: AllocatorSettings, capacity: int, total_memory: int) -> None:
        self._settings = settings
        self._allocator = CachingAllocator(Rules.of(settings, capacity, total_memory))
        self._lists: dict[tuple[int, bool], FreeList] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._blocks: dict[int, PoolBlock] = {}
        self._capacity = capacity
        self._num_served = 0
        self.allocated = 0
        """What ``torch.cuda.memory_allocated()`` says."""

    @property
    def reserved(self) -> int:
        """What ``torch.cuda.memory_reserved()`` says."""
        return self._allocator.reserved

    def serve(self, requests: Requests) -> OutOfMemory | None:
        """Serves requests of the default pool in order; returns the first that cannot be served."""
        columns = (requests.kind, requests.block, requests.size, requests.stream)
        for kind, block, size, stream in zip(*(column.tolist() for column in columns), strict=True):
            if kind == RequestKind.ALLOC:
                if (failure := self.allocate(block, size, stream)) is not None:
                    return failure
            elif kind == RequestKind.FREE:
                self.free(block)
            elif kind == RequestKind.FREE_REQUESTED:
                self.request_free(block)
            elif kind == RequestKind.FREE_COMPLETED:
                self.complete_free(block)
            else:
                self.empty_cache()
        return None

    def allocate(self, number: int, size: int, stream: int) -> OutOfMemory | None:
        """Allocates the block ``number``; returns what was missing if there is no memory."""
        known = self._sizes.get(size)
        if known is None:
            rounded = round_size(size, self._settings)
            known = self._sizes[size] = (rounded, segment_size(rounded, self._settings))
        rounded, segment = known
        allocator = self._allocator
        block = allocator.allocate(self._list_of(stream, rounded <= SMALL_REQUEST), rounded, segment)
        del allocator.segment_log[:]  # nothing reads it here, and it would grow for as long as the run lasts
        if block is None:
            return self._failure(size, segment)
        self._blocks[number] = block
        self.allocated += block.size
        self._num_served += 1
        return None

    def free(self, number: int) -> None:
        block = self._blocks.pop(number)
        self.allocated -= block.size
        self._allocator.free(block)

    def request_free(self, number: int) -> None:
        """Frees a block that another stream may still use; reusable after ``complete_free``."""
        block = self._blocks[number]
        self.allocated -= block.size
        self._allocator.request_free(block, number)

    def complete_free(self, number: int) -> None:
        self._allocator.complete_free(self._blocks.pop(number), number)

    def empty_cache(self) -> None:
        self._allocator.empty_cache()

    def held(self) -> frozenset[int]:
        """The blocks that have memory."""
        return frozenset(self._blocks)

    def _list_of(self, stream: int, small: bool) -> FreeList:
        known = self._lists.get((stream, small))
        if known is None:
            known = self._lists[stream, small] = self._allocator.add_free_list(stream, small=small, pool=0)
        return known

    def _failure(self, asked: int, needed: int) -> OutOfMemory:
        reserved, limit = self.reserved, self._allocator.rules.limit
        return OutOfMemory(
            request=self._num_served,
            event=-1,
            asked=asked,
            needed=needed,
            allocated=self.allocated,
            reserved=reserved,
            cached=reserved - self.allocated,
            capacity=min(self._capacity, limit),
        )
