"""A whole run, in Python."""

from __future__ import annotations

import numpy as np

from memfit.allocator.engine.allocator import CachingAllocator
from memfit.allocator.engine.blocks import FreeList, PoolBlock
from memfit.allocator.engine.outcome import Outcome, TriedRun
from memfit.allocator.engine.prepared import Prepared
from memfit.allocator.engine.rules import Rules
from memfit.allocator.requests import RequestKind
from memfit.ledger.schema import Array

_ALLOC, _FREE = int(RequestKind.ALLOC), int(RequestKind.FREE)
_FREE_REQUESTED, _EMPTY_CACHE = int(RequestKind.FREE_REQUESTED), int(RequestKind.EMPTY_CACHE)


class AllocatorRun:
    """Requests being served by an allocator. What it has come to can be looked at between any two of them."""

    def __init__(self, prepared: Prepared, rules: Rules) -> None:
        self.prepared = prepared
        self.allocator = CachingAllocator(rules, prepared.top_address)
        for stream, small, pool in prepared.free_lists:
            self.allocator.add_free_list(stream, small=small, pool=pool)
        self.blocks: list[PoolBlock | None] = [None] * prepared.num_blocks
        """The allocator's blocks by the program's numbers."""
        self.num_done = 0
        self._block_bytes = [0] * prepared.num_blocks
        self._completed = [len(prepared.kind)] * prepared.num_blocks
        self._num_inactive: list[int] = []

    def serve(self, stop: int) -> bool:
        """Serves the requests before number ``stop``; false when memory runs out."""
        allocator, blocks, prepared, span = self.allocator, self.blocks, self.prepared, slice(self.num_done, stop)
        columns = (prepared.kind, prepared.block, prepared.size, prepared.segment, prepared.address, prepared.free_list)
        for kind, number, size, segment, address, home in zip(*(column[span].tolist() for column in columns), strict=True):
            if kind == _ALLOC:
                block = allocator.allocate(allocator.free_lists[home], size, segment, address)
                if block is None:
                    return False
                blocks[number] = block
                self._block_bytes[number] = block.size
            elif kind == _EMPTY_CACHE:
                allocator.empty_cache()
            elif kind > _EMPTY_CACHE:
                allocator.release_pool(home)
            else:
                self._free(kind, number)
            self._num_inactive += allocator.num_inactive
            allocator.request += 1
            self.num_done += 1
        return True

    def _free(self, kind: int, number: int) -> None:
        block = self.blocks[number]
        assert block is not None
        if kind == _FREE:
            self.allocator.free(block)
        elif kind == _FREE_REQUESTED:
            self.allocator.request_free(block, number)
            return
        elif not self.allocator.complete_free(block, number):
            return
        self._completed[number] = self.num_done
        self.blocks[number] = None

    def held(self) -> dict[int, PoolBlock]:
        """The blocks that the program holds, or waits to be rid of, by its numbers."""
        gone = {number for _, number in self.allocator.synced}
        return {number: block for number, block in enumerate(self.blocks) if block is not None and number not in gone}

    def outcome(self) -> Outcome:
        allocator = self.allocator
        for request, number in allocator.synced:
            self._completed[number] = request
        return Outcome(
            num_done=self.num_done,
            block_bytes=np.array(self._block_bytes, dtype=np.int64),
            completed=np.array(self._completed, dtype=np.int64),
            num_inactive=np.array(self._num_inactive, dtype=np.int64).reshape(-1, 2),
            segment_log=np.array(allocator.segment_log, dtype=np.int64).reshape(-1, 5),
            num_alloc_retries=allocator.num_alloc_retries,
            num_sync_all_streams=allocator.num_sync_all_streams,
            num_oom_rejections=allocator.num_oom_rejections,
            most_granted=allocator.most_granted,
            least_refused=allocator.least_refused,
        )


def run(prepared: Prepared, rules: Rules) -> Outcome:
    """Serves the requests until they are over or memory has run out."""
    whole = AllocatorRun(prepared, rules)
    whole.serve(len(prepared.kind))
    return whole.outcome()


def try_run(prepared: Prepared, rules: Rules) -> TriedRun:
    """The same, where nothing but how it ends is wanted."""
    outcome = run(prepared, rules)
    return TriedRun(outcome.num_done == len(prepared.kind), outcome.most_granted, outcome.least_refused)


class OpenRun:
    """A run of the default pool, of which the requests come one after the other. After one that was refused it may go on."""

    def __init__(self, rules: Rules) -> None:
        self._allocator = CachingAllocator(rules)
        self._lists: list[FreeList] = []
        self._blocks: dict[int, PoolBlock] = {}
        self.allocated = 0

    def add_list(self, stream: int, *, small: bool) -> int:
        """The number of a new free list."""
        self._lists.append(self._allocator.add_free_list(stream, small=small, pool=0))
        return len(self._lists) - 1

    def serve_one(self, kind: int, block: int, size: int = 0, segment: int = 0, free_list: int = 0) -> bool:
        """False if it is refused."""
        allocator = self._allocator
        if kind == _ALLOC:
            found = allocator.allocate(self._lists[free_list], size, segment)
            del allocator.segment_log[:]  # nothing reads it here, and it would grow for as long as the run lasts
            if found is None:
                return False
            self._blocks[block] = found
            self.allocated += found.size
        elif kind == _EMPTY_CACHE:
            allocator.empty_cache()
        elif kind == _FREE_REQUESTED:
            self.allocated -= self._blocks[block].size
            allocator.request_free(self._blocks[block], block)
        elif kind == _FREE:
            self.allocated -= self._blocks[block].size
            allocator.free(self._blocks.pop(block))
        else:
            allocator.complete_free(self._blocks.pop(block), block)
        return True

    def serve(self, kind: Array, block: Array, size: Array, segment: Array, free_list: Array) -> int:
        """How many were served until one was refused."""
        columns = (kind, block, size, segment, free_list)
        for number, request in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            if not self.serve_one(*request):
                return number
        return len(kind)

    @property
    def reserved(self) -> int:
        return self._allocator.reserved
