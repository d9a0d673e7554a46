"""Expandable segments: one address range a free list, with memory mapped behind it page by page.

::

    range   [ in use | free | in use |      unmapped      ]
    pages   |    20 MiB    |    20 MiB    |

A request takes a hole that holds it; failing that, the first stretch of free and unmapped space that is long enough gets the
pages it lacks, so that large blocks lie back to back. Giving back unmaps the pages that lie wholly in free blocks.
"""

from __future__ import annotations

from typing import Protocol

from memfit.allocator.engine.blocks import FREE, UNMAPPED, FreeList, PoolBlock
from memfit.allocator.engine.outcome import SegmentChange
from memfit.allocator.engine.rules import Rules

_MAP, _UNMAP = int(SegmentChange.MAP), int(SegmentChange.UNMAP)


class Grows(Protocol):
    """What mapping pages needs of the allocator, which calls this file and so cannot be imported by it."""

    rules: Rules
    reserved: int
    num_lookups: int

    def next_block(self) -> int: ...

    def has_addresses(self, size: int) -> bool: ...

    def is_granted(self, size: int) -> bool: ...

    def open_segment(self, home: FreeList, size: int, *, expandable: bool = False) -> PoolBlock: ...

    def log(self, change: int, block: PoolBlock) -> None: ...

    def free(self, block: PoolBlock) -> None: ...


def prefer_holes(home: FreeList, index: int) -> int:
    """The best fit when a block that can grow into unmapped space counts as large as it could become."""
    blocks = home.blocks
    while (
        index + 1 < len(blocks)
        and blocks[index].segment.expandable
        and _potential_size(blocks[index + 1]) < _potential_size(blocks[index])
    ):
        index += 1
    return index


def grow(allocator: Grows, home: FreeList, size: int) -> PoolBlock | None:
    """A free block of at least ``size`` bytes, taken off its list, with memory mapped behind it; ``None`` if there is none left."""
    if size > _range_bytes(allocator, home):
        return None  # no range has room for it, however much memory there is
    block = _find_room(allocator, home, size)
    if block is None:
        return None
    if block.state == UNMAPPED and not _map(allocator, block, min(block.size, size)):
        return None
    while block.size < size:
        unmapped = block.following
        assert unmapped is not None
        if not _map(allocator, unmapped, min(size - block.size, unmapped.size)):
            return None
        block = unmapped
    home.remove(block)
    return block


def unmap(allocator: Grows, block: PoolBlock) -> None:
    """Gives back the pages that lie wholly inside a free block; what is left of it stays free."""
    home, page, base = block.home, _page(allocator, block.home), block.segment.address
    end = block.address + block.size
    first_page = base - (base - block.address) // page * page
    last_page = base + (end - base) // page * page
    if first_page >= last_page:
        return
    home.remove(block)
    if block.address < first_page:
        front = PoolBlock(home, block.segment, allocator.next_block(), block.address, first_page - block.address)
        front.link(block.previous, block)
        home.put(front, allocator.num_lookups)
    if last_page < end:
        rest = PoolBlock(home, block.segment, allocator.next_block(), last_page, end - last_page)
        rest.link(block, block.following)
        home.put(rest, allocator.num_lookups)
    block.address, block.size = first_page, last_page - first_page
    allocator.reserved -= block.size
    allocator.log(_UNMAP, block)
    for neighbour in (block.previous, block.following):
        if neighbour is not None and neighbour.state == UNMAPPED:
            home.remove_unmapped(neighbour)
            block.swallow(neighbour)
    home.put_unmapped(block)


def _find_room(allocator: Grows, home: FreeList, size: int) -> PoolBlock | None:
    """The start of the first stretch of free and unmapped blocks with room for ``size`` bytes, in a new range if need be."""
    for block in home.unmapped:
        before = block.previous
        start = before if before is not None and before.state == FREE else block
        if _has_room(start, size):
            return start
    range_bytes = _range_bytes(allocator, home)
    if not allocator.has_addresses(range_bytes):
        return None
    block = allocator.open_segment(home, range_bytes, expandable=True)
    home.put_unmapped(block)
    return block


def _has_room(block: PoolBlock | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and block.state in (FREE, UNMAPPED):
        room += block.size
        block = block.following
    return room >= size


def _map(allocator: Grows, block: PoolBlock, size: int) -> bool:
    """Maps the first pages of an unmapped block, enough for ``size`` bytes, and merges them with free neighbours."""
    home, page = block.home, _page(allocator, block.home)
    mapped = -(-size // page) * page
    if not allocator.is_granted(mapped):
        return False
    home.remove_unmapped(block)
    if mapped < block.size:
        rest = PoolBlock(home, block.segment, allocator.next_block(), block.address + mapped, block.size - mapped)
        rest.link(block, block.following)
        home.put_unmapped(rest)
        block.size = mapped
    allocator.reserved += mapped
    allocator.log(_MAP, block)
    allocator.free(block)
    return True


def _potential_size(block: PoolBlock) -> int:
    following = block.following
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)


def _range_bytes(allocator: Grows, home: FreeList) -> int:
    page = _page(allocator, home)
    return -(-allocator.rules.range_bytes // page) * page


def _page(allocator: Grows, home: FreeList) -> int:
    return allocator.rules.small_page if home.small else allocator.rules.large_page
