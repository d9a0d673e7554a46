"""The requests of a program to the allocator, from any source.

::

    Ledger ───────┐
    trace .npz ───┼──> Requests ──> replay, smallest_fit
    snapshot ─────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np

from memfit.allocator.settings import SIZE_LIMIT
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.ledger.schema import Array

TOTAL_LIMIT: Final = 2**60
"""An upper bound of the sum of a run's requests."""


class RequestKind(IntEnum):
    """The kind of a request."""

    ALLOC = 0
    FREE = 1
    """Freed, and used by no other stream."""
    FREE_REQUESTED = 2
    """Freed, but another stream may still use it; reusable after ``FREE_COMPLETED``."""
    FREE_COMPLETED = 3
    EMPTY_CACHE = 4
    RELEASE_POOL = 5
    """A private pool is released: its idle memory is freed, now and with every ``EMPTY_CACHE``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Requests:
    """One row per request, in the program's order. Raises an error for impossible sequences of requests."""

    kind: Array
    """``RequestKind``."""
    block: Array
    """The program's number for the block; -1 for requests about no block."""
    size: Array
    """Requested bytes; 0 unless it is an allocation."""
    stream: Array
    """The number of the stream, 0 for the first."""
    pool: Array
    """The number of the private pool; 0 is the default pool."""
    event: Array
    """The event of the source behind this request."""
    segment_address: Array
    """The address of the segment that the recorded run got for this allocation; 0 if it got none or nothing was recorded."""
    segment_size: Array
    """The size of that segment."""
    num_blocks: int
    num_events: int
    """Number of events of the source, requests or not."""
    source: str
    """What it was read from: ``ledger``, ``trace`` or ``snapshot``."""
    torch_version: str = ""
    """The torch version of the recorded run, if the source says it."""
    alloc_conf: str = ""
    """The allocator's settings of the recorded run, if the source says them."""
    oddities: tuple[str, ...] = ()
    """Oddities of the source, and how they were interpreted."""
    stream_ids: tuple[int, ...] = ()
    """What the source calls each stream, if that is something else."""
    pool_ids: tuple[tuple[int, ...], ...] = ((0, 0),)
    """What torch calls each pool."""
    ledger: Ledger | None = None
    """The ledger behind the requests, if there is one."""
    recorded_peaks: dict[str, int] = field(default_factory=dict)
    """``peak_allocated`` and ``peak_reserved`` as the recorded run's own allocator counted them."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Oddities of the source and of these requests."""
        num_emptied = int((self.kind == RequestKind.EMPTY_CACHE).sum())
        if self.source == "ledger" or not num_emptied:
            return self.oddities
        return (*self.oddities, f"cached memory was given back {num_emptied} times: taken as calls of torch.cuda.empty_cache()")

    # -- the same requests, changed ------------------------------------------------------------------------------------------

    def take(self, rows: Array, **changed: Any) -> Self:
        """A selection of the requests in this order, with some fields changed."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, **columns | changed)

    def insert(self, row: int, *, size: int, event: int, stream: int = 0) -> Self:
        """A copy with an additional allocation before request ``row``."""
        new = {"kind": int(RequestKind.ALLOC), "block": self.num_blocks, "size": size, "event": event, "stream": stream}
        columns: dict[str, Any] = {name: np.insert(getattr(self, name), row, new.get(name, 0)) for name in COLUMNS}
        return replace(self, **columns, num_blocks=self.num_blocks + 1)

    def append(self, *, size: int, event: int, stream: int = 0) -> Self:
        """A copy with an additional allocation at the end."""
        return self.insert(len(self), size=size, event=event, stream=stream)

    # -- laws ----------------------------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        if any(((column < 0) | (column >= limit)).any() for column, limit in self._limits()):
            raise ConfigError("a request has a kind, stream or pool that is not possible")
        sizes = self.size[self.kind == RequestKind.ALLOC]
        if len(sizes) and not (sizes.min() > 0 and sizes.max() < SIZE_LIMIT and sizes.sum(dtype=float) < TOTAL_LIMIT):
            raise ConfigError(f"requests for {sizes.min()} to {sizes.max()} bytes are not possible: check where they come from")
        wrong = self._out_of_turn()
        if len(wrong):
            raise ConfigError(f"request {wrong[0]} frees a block that is not allocated, or allocates one a second time")

    def _limits(self) -> tuple[tuple[Array, int], ...]:
        return (self.kind, len(RequestKind)), (self.stream, 2**30), (self.pool, 2**30)

    def _out_of_turn(self) -> Array:
        """The requests that cannot follow the previous request about the same block."""
        about_blocks = np.flatnonzero(self.kind <= RequestKind.FREE_COMPLETED)
        order = about_blocks[np.argsort(self.block[about_blocks], kind="stable")]
        kind, block = self.kind[order].astype(np.int64), self.block[order]
        before = np.where(block == np.roll(block, 1), np.roll(kind, 1), -1)
        before[:1] = -1
        strange = (block < 0) | (block >= self.num_blocks) | ~np.isin(before * 8 + kind, _IN_TURN)
        return np.sort(order[strange])


COLUMNS: Final = ("kind", "block", "size", "stream", "pool", "event", "segment_address", "segment_size")
"""The fields of ``Requests`` that have one entry per request."""

_IN_TURN: Final = (
    -1 * 8 + RequestKind.ALLOC,
    RequestKind.ALLOC * 8 + RequestKind.FREE,
    RequestKind.ALLOC * 8 + RequestKind.FREE_REQUESTED,
    RequestKind.FREE_REQUESTED * 8 + RequestKind.FREE_COMPLETED,
)
"""Legal sequences of requests about one block, encoded as eight times the previous kind (-1 for none) plus the next."""
