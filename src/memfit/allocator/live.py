"""The allocator of a GPU of a certain size, for one request at a time while a run goes on.

``replay`` answers when a run is over. Where the run itself must notice that memory has run out, and may go on after that, each
request is served when it comes.
"""

from __future__ import annotations

import numpy as np

from memfit.allocator.engine import Rules, open_run
from memfit.allocator.replaying import OutOfMemory
from memfit.allocator.requests import RequestKind
from memfit.allocator.settings import SMALL_REQUEST, AllocatorSettings
from memfit.allocator.sizing import round_size, round_sizes, segment_size
from memfit.ledger.schema import Array


class LiveAllocator:
    """Serves requests for blocks, which the caller numbers. After a refusal its cache has been given back, as CUDA's has."""

    def __init__(self, settings: AllocatorSettings, capacity: int, total_memory: int) -> None:
        self._settings, self._rules = settings, Rules.of(settings, capacity, total_memory)
        self._run = open_run(self._rules)
        self._lists: dict[tuple[int, bool], int] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._capacity = capacity
        self._num_served = 0

    @property
    def allocated(self) -> int:
        """What ``torch.cuda.memory_allocated()`` says."""
        return self._run.allocated

    @property
    def reserved(self) -> int:
        """What ``torch.cuda.memory_reserved()`` says."""
        return self._run.reserved

    def serve(self, kind: Array, block: Array, size: Array, stream: Array) -> tuple[int, OutOfMemory | None]:
        """Serves requests of the default pool in order, until one is refused: how many were served, and what was missing."""
        rounded, segment = round_sizes(size, self._settings)
        small = rounded <= SMALL_REQUEST
        lists = np.zeros(len(kind), dtype=np.int64)
        for each in np.unique(stream[kind == RequestKind.ALLOC]).tolist():
            here = stream == each
            for is_small, chosen in ((True, here & small), (False, here & ~small)):
                if (chosen & (kind == RequestKind.ALLOC)).any():
                    lists[chosen] = self._list_of(each, is_small)
        served = self._run.serve(kind.astype(np.uint8, copy=False), block.astype(np.int64, copy=False), rounded, segment, lists)
        self._num_served += int((kind[:served] == RequestKind.ALLOC).sum())
        return served, None if served == len(kind) else self._failure(int(size[served]), int(segment[served]))

    def allocate(self, number: int, size: int, stream: int) -> OutOfMemory | None:
        """Allocates the block ``number``; returns what was missing if there is no memory."""
        known = self._sizes.get(size)
        if known is None:
            rounded = round_size(size, self._settings)
            known = self._sizes[size] = (rounded, segment_size(rounded, self._settings))
        rounded, segment = known
        if not self._run.serve_one(RequestKind.ALLOC, number, rounded, segment, self._list_of(stream, rounded <= SMALL_REQUEST)):
            return self._failure(size, segment)
        self._num_served += 1
        return None

    def free(self, number: int) -> None:
        self._run.serve_one(RequestKind.FREE, number)

    def request_free(self, number: int) -> None:
        """Frees a block that another stream may still use; reusable after ``complete_free``."""
        self._run.serve_one(RequestKind.FREE_REQUESTED, number)

    def complete_free(self, number: int) -> None:
        self._run.serve_one(RequestKind.FREE_COMPLETED, number)

    def empty_cache(self) -> None:
        self._run.serve_one(RequestKind.EMPTY_CACHE, 0)

    def _list_of(self, stream: int, small: bool) -> int:
        known = self._lists.get((stream, small))
        if known is None:
            known = self._lists[stream, small] = self._run.add_list(stream, small=small)
        return known

    def _failure(self, asked: int, needed: int) -> OutOfMemory:
        reserved, allocated = self.reserved, self.allocated
        return OutOfMemory(
            request=self._num_served,
            event=-1,
            asked=asked,
            needed=needed,
            allocated=allocated,
            reserved=reserved,
            cached=reserved - allocated,
            capacity=min(self._capacity, self._rules.limit),
        )
