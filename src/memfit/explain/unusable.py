"""What was reserved but not in use at the failure, and why it could not serve the request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from memfit.allocator import AllocatorSettings, SegmentState
from memfit.allocator.settings import SMALL_REQUEST


class Reason(StrEnum):
    """Why memory could not serve a request. The values are what people read, and what JSON has."""

    FREE = "free"
    TOO_SMALL = "in pieces smaller than the request"
    LARGE_ONLY = "kept for requests above 1 MiB"
    SMALL_ONLY = "kept for requests of 1 MiB and less"
    OTHER_STREAM = "belongs to other CUDA streams"
    OTHER_POOL = "belongs to private pools: CUDA graphs, or MemPools"
    NOT_SPLIT = "in blocks that max_split_size_mb keeps whole"
    PENDING = "freed, but another stream may still be using it"
    SLACK = "lost to rounding inside blocks in use"


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """Memory that the process held and could not use, for one reason."""

    reason: Reason
    size_bytes: int
    num_pieces: int
    largest_piece: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the request wanted: a block of one size class, for one stream, from one pool."""

    size_bytes: int
    stream: int
    pool: int

    @property
    def small(self) -> bool:
        return self.size_bytes <= SMALL_REQUEST


def find_unusable(segments: list[SegmentState], wanted: Wanted | None, settings: AllocatorSettings) -> tuple[Unusable, ...]:
    """All of it, by reason, the largest first; where the failed request is not known, free pieces are not classified further."""
    pieces: dict[Reason, list[int]] = {}
    for segment in segments:
        for reason, size in _pieces(segment, wanted, settings):
            pieces.setdefault(reason, []).append(size)
    found = [
        Unusable(reason=reason, size_bytes=sum(sizes), num_pieces=len(sizes), largest_piece=max(sizes))
        for reason, sizes in pieces.items()
    ]
    return tuple(sorted(found, key=lambda group: -group.size_bytes))


def _pieces(segment: SegmentState, wanted: Wanted | None, settings: AllocatorSettings) -> Iterator[tuple[Reason, int]]:
    for block in segment.blocks:
        if block.state == "inactive":
            yield _reason(segment, block.size, wanted, settings), block.size
        elif block.state == "active_pending_free":
            yield Reason.PENDING, block.size
        elif block.size > block.requested:
            yield Reason.SLACK, block.size - block.requested


def _reason(segment: SegmentState, size: int, wanted: Wanted | None, settings: AllocatorSettings) -> Reason:
    if wanted is None:
        return Reason.FREE
    if segment.pool != wanted.pool:
        return Reason.OTHER_POOL
    if segment.small != wanted.small:
        return Reason.LARGE_ONLY if wanted.small else Reason.SMALL_ONLY
    if segment.stream != wanted.stream:
        return Reason.OTHER_STREAM
    if size >= wanted.size_bytes and settings.max_split_bytes is not None:
        return Reason.NOT_SPLIT
    return Reason.TOO_SMALL
