"""The segments at one moment of a run, with what lies in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memfit.allocator.engine.blocks import FREE, IN_USE, PENDING, UNMAPPED, PoolBlock
from memfit.allocator.engine.python import AllocatorRun


@dataclass(frozen=True)
class BlockState:
    """A stretch of a segment."""

    address: int
    size: int
    requested: int
    """What the program asked for; 0 of a free block."""
    state: str
    """As torch's snapshots say it: ``active_allocated``, ``active_pending_free`` or ``inactive``."""
    number: int
    """The program's number for the block, -1 if it is free."""


@dataclass(frozen=True)
class SegmentState:
    """Memory obtained from the GPU: a segment, or of an expandable one a stretch that is mapped."""

    address: int
    size: int
    stream: int
    small: bool
    pool: int
    expandable: bool
    blocks: tuple[BlockState, ...]
    """In order, back to back."""

    @property
    def active_bytes(self) -> int:
        return sum(block.size for block in self.blocks if block.state != "inactive")

    @property
    def inactive_bytes(self) -> int:
        """Free, but kept: by other blocks in the segment, or in the cache."""
        return self.size - self.active_bytes

    @property
    def idle(self) -> bool:
        """Is nothing of it in use?"""
        return self.active_bytes == 0


def segments_of(run: AllocatorRun, requested: list[int]) -> list[SegmentState]:
    """What a run has come to, by address; ``requested`` holds the bytes that each of the program's blocks asked for."""
    held = run.held()
    numbers = {id(block): number for number, block in held.items()}
    free = (block for home in run.allocator.free_lists for block in (*home.blocks, *home.unmapped))
    heads = [block for block in (*free, *held.values()) if block.previous is None]
    found = [_segment_state(stretch, numbers, requested) for head in heads for stretch in _mapped_stretches(head)]
    return sorted(found, key=lambda segment: segment.address)


def _mapped_stretches(head: PoolBlock) -> Iterator[list[PoolBlock]]:
    """The blocks of a segment, in runs of those that have memory behind them."""
    stretch: list[PoolBlock] = []
    block: PoolBlock | None = head
    while block is not None:
        if block.state != UNMAPPED:
            stretch.append(block)
        elif stretch:
            yield stretch
            stretch = []
        block = block.following
    if stretch:
        yield stretch


def _segment_state(stretch: list[PoolBlock], numbers: dict[int, int], requested: list[int]) -> SegmentState:
    home = stretch[0].home
    return SegmentState(
        address=stretch[0].address,
        size=sum(block.size for block in stretch),
        stream=home.stream,
        small=home.small,
        pool=home.pool,
        expandable=stretch[0].segment.expandable,
        blocks=tuple(_block_state(block, numbers.get(id(block), -1), requested) for block in stretch),
    )


def _block_state(block: PoolBlock, number: int, requested: list[int]) -> BlockState:
    state = {IN_USE: "active_allocated", PENDING: "active_pending_free", FREE: "inactive"}[block.state]
    return BlockState(block.address, block.size, requested[number] if number >= 0 else 0, state, number)
