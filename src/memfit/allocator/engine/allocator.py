"""CUDA's caching allocator, one allocation or free at a time.

::

    allocate ─> best fit among free blocks ─┐
                 │ none                     ├─> split off the rest ─> a block in use
                 └─> grow: new segment ─────┘                              │ free
                      │ no memory left                                     v
                      ├─> give oversize blocks back, retry          merge with free neighbours ─> free list
                      └─> give every idle segment back, retry
                           └─> out of memory
"""

from __future__ import annotations

from typing import Final

from memfit.allocator.engine import expandable
from memfit.allocator.engine.blocks import FREE, IN_USE, PENDING, FreeList, PoolBlock, Segment
from memfit.allocator.engine.outcome import SegmentChange
from memfit.allocator.engine.rules import NO_LIMIT, Rules

TOP_ADDRESS: Final = 1 << 52
"""Segments are placed downwards from here, as the CUDA driver does."""

LOWEST_ADDRESS: Final = -NO_LIMIT
"""Nor are any placed below this: 64 bits have to hold every address."""

_ALLOC, _FREE = int(SegmentChange.ALLOC), int(SegmentChange.FREE)
_IDLE, _BUSY = int(SegmentChange.IDLE), int(SegmentChange.BUSY)


class CachingAllocator:
    """Sizes are rounded and free lists are found by the caller: see ``prepared.py``."""

    def __init__(self, rules: Rules, top_address: int = TOP_ADDRESS) -> None:
        self.rules = rules
        self.free_lists: list[FreeList] = []
        self.reserved = 0
        self.pending: dict[PoolBlock, int] = {}
        """Blocks whose free has been asked for but not completed, oldest first, and the numbers the program has for them."""
        self.released_pools = {0}
        """The pools whose idle segments may be given back."""
        self.request = 0
        """Which request is being served; the log's time."""
        self.num_inactive = [0, 0]
        """Free blocks that share their segment with others: large, small."""
        self.segment_log: list[tuple[int, int, int, int, int]] = []
        self.synced: list[tuple[int, int]] = []
        """Pending frees that ``empty_cache`` waited for: the request, and the program's number for the block."""
        self.num_alloc_retries = self.num_sync_all_streams = self.num_oom_rejections = 0
        self.most_granted, self.least_refused = 0, NO_LIMIT
        self.num_lookups = 0
        """Searches of the large pool: the age of idle segments is counted in them."""
        self._lowest_address = top_address
        self._num_blocks = self._num_segments = 0
        self._collects = rules.collect_above < NO_LIMIT

    def add_free_list(self, stream: int, *, small: bool, pool: int) -> FreeList:
        rules = self.rules
        number = len(self.free_lists)
        free_list = FreeList(number, stream, small, pool, expandable=rules.expandable, tie_break=rules.tie_break)
        self.free_lists.append(free_list)
        return free_list

    # -- allocating ----------------------------------------------------------------------------------------------------------

    def allocate(self, home: FreeList, size: int, segment_bytes: int, address: int = 0) -> PoolBlock | None:
        """A block of at least ``size`` bytes; ``None`` when out of memory.

        Should that take a new segment, it has ``segment_bytes`` and lies at ``address``, if one is given.
        """
        block = self._best_fit(home, size)
        if block is None:
            block = self._grow(home, size, segment_bytes, address)
            if block is None:
                return None
        if block.size - size >= home.least_rest and (size < self.rules.max_split or home.small or self.rules.expandable):
            self._split(block, size)
        block.state = IN_USE
        return block

    def _best_fit(self, home: FreeList, size: int) -> PoolBlock | None:
        if self._collects and not home.small and home.pool == 0:
            self.num_lookups += 1
        index = home.first_of(size)
        if index == len(home.blocks):
            return None
        rules = self.rules
        if rules.expandable:
            index = expandable.prefer_holes(home, index)
        found = home.blocks[index].size
        if (size < rules.max_split <= found) or (size >= rules.max_split and found >= size + rules.non_split_slack):
            return None
        block = home.take(index)
        if not block.segment.expandable:
            if block.whole:
                self.log(_BUSY, block)
            else:
                self.num_inactive[home.small] -= 1
        return block

    def _split(self, block: PoolBlock, size: int) -> None:
        rest = PoolBlock(block.home, block.segment, block.number, block.address + size, block.size - size)
        rest.link(block, block.following)
        block.size = size
        block.number = self.next_block()
        block.home.put(rest, self.num_lookups)
        if not block.segment.expandable:
            self.num_inactive[block.home.small] += 1

    def _grow(self, home: FreeList, size: int, segment_bytes: int, address: int) -> PoolBlock | None:
        if self.reserved > self.rules.collect_above:
            self._collect_garbage()
        block = self._obtain(home, size, segment_bytes, address)
        if block is None and self._rejects(segment_bytes):
            self.num_oom_rejections += 1
            return None
        if block is None and self._release_oversize(home, size):
            block = self._obtain(home, size, segment_bytes, address)
        if block is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._obtain(home, size, segment_bytes, address)
        return block

    def _obtain(self, home: FreeList, size: int, segment_bytes: int, address: int) -> PoolBlock | None:
        """Memory from the GPU, if the limits allow it."""
        if self.reserved + segment_bytes > self.rules.limit:
            return None
        if self.rules.expandable:
            return expandable.grow(self, home, size)
        if not self.is_granted(segment_bytes) or not self.has_addresses(segment_bytes):
            return None
        block = self.open_segment(home, segment_bytes, address=address)
        self.reserved += segment_bytes
        self.log(_ALLOC, block)
        return block

    def is_granted(self, size: int) -> bool:
        """True if the GPU gives that many bytes more."""
        reserved = self.reserved + size
        if reserved > self.rules.capacity:
            self.least_refused = min(self.least_refused, reserved)
            return False
        self.most_granted = max(self.most_granted, reserved)
        return True

    def _rejects(self, segment_bytes: int) -> bool:
        return self.rules.reject_at_limit and self.reserved + segment_bytes > self.rules.limit

    def has_addresses(self, size: int) -> bool:
        """Is there address space left for a segment? Only absurd sizes, asked for again and again, use all of it up."""
        return self._lowest_address - size >= LOWEST_ADDRESS

    def open_segment(self, home: FreeList, size: int, *, expandable: bool = False, address: int = 0) -> PoolBlock:
        """A new segment, as one block."""
        if not address:
            self._lowest_address -= size
            address = self._lowest_address
        segment = Segment(self._num_segments, address, expandable=expandable)
        self._num_segments += 1
        return PoolBlock(home, segment, self.next_block(), address, size)

    # -- freeing -------------------------------------------------------------------------------------------------------------

    def free(self, block: PoolBlock) -> None:
        """Returns a block to its free list, merged with its free neighbours."""
        home = block.home
        num_merged = 0
        for neighbour in (block.previous, block.following):
            if neighbour is not None and neighbour.state == FREE:
                home.remove(neighbour)
                block.swallow(neighbour)
                num_merged += 1
        home.put(block, self.num_lookups)
        if not block.segment.expandable:
            if block.whole:
                self.num_inactive[home.small] -= num_merged
                self.log(_IDLE, block)
            else:
                self.num_inactive[home.small] += 1 - num_merged

    def request_free(self, block: PoolBlock, owner: int) -> None:
        """The program frees a block that other streams may still be using; ``owner`` is its own number for it."""
        block.state = PENDING
        self.pending[block] = owner

    def complete_free(self, block: PoolBlock, owner: int) -> bool:
        """They no longer do. False if ``empty_cache`` has waited for them already, and the block may be another's."""
        if self.pending.get(block) != owner:
            return False
        del self.pending[block]
        self.free(block)
        return True

    # -- giving back ---------------------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Waits for all streams, then gives back every segment of which nothing is in use."""
        self.num_sync_all_streams += 1
        for block, owner in list(self.pending.items()):
            self.complete_free(block, owner)
            self.synced.append((self.request, owner))
        self._release_idle(self.released_pools)

    def release_pool(self, pool: int) -> None:
        """Nothing uses this private pool any more: its idle segments are given back, and those that will be."""
        self.released_pools.add(pool)
        self._release_idle({pool})

    def _release_idle(self, pools: set[int]) -> None:
        for home in self.free_lists:
            for block in list(home.blocks) if home.pool in pools else ():
                if block.segment.expandable:
                    expandable.unmap(self, block)
                elif block.whole:
                    self._release(block)

    def _release_oversize(self, home: FreeList, size: int) -> bool:
        """Gives back cached blocks that may not be split: one that is large enough, or as many of the largest as it takes.

        A block that shares its segment stays: with segments larger than the split size there are such.
        """
        most = self.rules.max_split
        if most == NO_LIMIT:
            return False
        wanted = max(size, most)
        index = home.first_of(wanted)
        if index < len(home.blocks) and home.blocks[index].whole and not home.blocks[index].segment.expandable:
            self._release(home.blocks[index])
            return True
        released = 0
        for block in home.blocks[:index][::-1]:
            if released >= wanted or block.size < most:
                break
            if block.whole and not block.segment.expandable:
                released += block.size
                self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Gives back the idle large segments that have gone unused longest, until reserved memory is below the threshold."""
        idle = [b for home in self.free_lists if not home.small and home.pool == 0 for b in home.blocks if b.whole]
        excess = self.reserved - self.rules.collect_above
        while idle and excess > 0:
            mean_age = sum(self.num_lookups - block.idle_since for block in idle) / len(idle)
            old = [b for b in idle if self.num_lookups - b.idle_since >= mean_age and not b.segment.expandable]
            if not old:
                break
            for block in old:
                self._release(block)
                idle.remove(block)
                excess -= block.size

    def _release(self, block: PoolBlock) -> None:
        block.home.remove(block)
        self.reserved -= block.size
        self.log(_BUSY, block)
        self.log(_FREE, block)

    # -- bookkeeping ---------------------------------------------------------------------------------------------------------

    def next_block(self) -> int:
        self._num_blocks += 1
        return self._num_blocks

    def log(self, change: int, block: PoolBlock) -> None:
        self.segment_log.append((self.request, change, block.home.number, block.address, block.size))
