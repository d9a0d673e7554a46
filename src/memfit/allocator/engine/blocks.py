"""Blocks, and the lists in which free ones wait."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from memfit.allocator.settings import MIN_BLOCK, SMALL_REQUEST, TieBreak

IN_USE: Final = 0
PENDING: Final = 1
"""Freed by the program, but another stream may still be using it."""
FREE: Final = 2
UNMAPPED: Final = 3
"""Address space of an expandable segment with no memory behind it."""

_RANK_BITS: Final = 96
_LOWEST_RANK: Final = -(1 << (_RANK_BITS - 1))
_ADDRESS_BITS: Final = 64


class Segment:
    """Memory obtained from the GPU in one piece, or an address range that grows."""

    __slots__ = ("address", "expandable", "number")

    def __init__(self, number: int, address: int, *, expandable: bool) -> None:
        self.number = number
        self.address = address
        self.expandable = expandable


class PoolBlock:
    """A stretch of a segment, in a chain with its neighbours."""

    __slots__ = ("address", "following", "home", "idle_since", "key", "number", "previous", "segment", "size", "state")

    def __init__(self, home: FreeList, segment: Segment, number: int, address: int, size: int) -> None:
        self.home = home
        self.segment = segment
        self.number = number
        self.address = address
        self.size = size
        self.previous: PoolBlock | None = None
        self.following: PoolBlock | None = None
        self.state = IN_USE
        self.key = 0
        self.idle_since = 0

    @property
    def whole(self) -> bool:
        """Is it all of its segment?"""
        return self.previous is None and self.following is None

    def link(self, previous: PoolBlock | None, following: PoolBlock | None) -> None:
        """Puts this block into the chain between two neighbours."""
        self.previous, self.following = previous, following
        if previous is not None:
            previous.following = self
        if following is not None:
            following.previous = self

    def swallow(self, neighbour: PoolBlock) -> None:
        """Takes over the memory of the block before or behind this one."""
        self.size += neighbour.size
        if neighbour is self.previous:
            self.address = neighbour.address
            self.link(neighbour.previous, self.following)
        else:
            self.link(self.previous, neighbour.following)


class FreeList:
    """The free blocks of one stream, in one size class of one pool: smallest first, equal sizes as the version ranks them."""

    __slots__ = ("blocks", "by_address", "by_birth", "keys", "least_rest", "number", "pool", "small", "stream", "unmapped")

    def __init__(self, number: int, stream: int, small: bool, pool: int, *, expandable: bool, tie_break: TieBreak) -> None:
        self.number = number
        self.stream = stream
        self.small = small
        self.pool = pool
        self.by_address = tie_break == TieBreak.ADDRESS
        self.by_birth = tie_break == TieBreak.BIRTH
        self.least_rest = MIN_BLOCK if small or expandable else SMALL_REQUEST + MIN_BLOCK
        """The rest of a block is split off when it has at least this many bytes."""
        self.keys: list[int] = []
        self.blocks: list[PoolBlock] = []
        self.unmapped: list[PoolBlock] = []
        """By address."""

    def first_of(self, size: int) -> int:
        """The index of the first block that holds ``size`` bytes."""
        return bisect_left(self.keys, (size << _RANK_BITS) + _LOWEST_RANK)

    def put(self, block: PoolBlock, now: int) -> None:
        block.state = FREE
        block.idle_since = now
        key = block.key = (block.size << _RANK_BITS) + (block.address if self.by_address else self._rank(block))
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def take(self, index: int) -> PoolBlock:
        del self.keys[index]
        return self.blocks.pop(index)

    def remove(self, block: PoolBlock) -> None:
        index = bisect_left(self.keys, block.key)
        # A log can place two segments at one address: then their blocks may rank the same.
        while self.blocks[index] is not block:
            index += 1
        self.take(index)

    def put_unmapped(self, block: PoolBlock) -> None:
        block.state = UNMAPPED
        self.unmapped.insert(bisect_left(self.unmapped, block.address, key=_address), block)

    def remove_unmapped(self, block: PoolBlock) -> None:
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]

    def _rank(self, block: PoolBlock) -> int:
        return block.number if self.by_birth else (block.segment.number << _ADDRESS_BITS) + block.address


def _address(block: PoolBlock) -> int:
    return block.address
