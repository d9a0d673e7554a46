"""What an engine reports of a run. Everything else about it is derived from this and the requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from memfit.ledger.schema import Array


class SegmentChange(IntEnum):
    """What became of memory obtained from the GPU."""

    ALLOC = 0
    FREE = 1
    MAP = 2
    """Pages of an expandable segment."""
    UNMAP = 3
    IDLE = 4
    """All of a segment is free: it is cached, and can be given back."""
    BUSY = 5
    """Part of an idle segment is in use again."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Requests count as time."""

    num_done: int
    """The requests that were served; where it is less than all, the next one ran out of memory."""
    block_bytes: Array
    """Per block of the program: the bytes that count as allocated for it, 0 if it was never served."""
    completed: Array
    """Per block: the request at which its memory became free again, the number of requests while it is not."""
    num_inactive: Array
    """Per request and size class (large, small): the free blocks that share a segment with others afterwards."""
    segment_log: Array
    """Rows of request, ``SegmentChange``, free list, address, size."""
    num_alloc_retries: int
    num_sync_all_streams: int
    num_oom_rejections: int
    most_granted: int
    """The most bytes that the GPU had given at a time."""
    least_refused: int
    """The least that it would have given at a time, had it not refused; ``NO_LIMIT`` if it never did. With any capacity from
    ``most_granted`` to below this, and up to a TiB, the run is the same."""


@dataclass(frozen=True)
class TriedRun:
    """What an engine reports of a run that is only tried."""

    completes: bool
    most_granted: int
    """As in ``Outcome``. Where nothing was refused, it is the most that was reserved."""
    least_refused: int
