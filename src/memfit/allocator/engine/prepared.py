"""Requests as an engine takes them: sizes rounded, free lists found, nothing left to look up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memfit.allocator.engine.allocator import TOP_ADDRESS
from memfit.allocator.engine.repeating import RepeatedStretch, find_stretches
from memfit.allocator.requests import RequestKind, Requests
from memfit.allocator.settings import SMALL_REQUEST, AllocatorSettings
from memfit.allocator.sizing import round_sizes
from memfit.ledger.schema import Array


@dataclass(frozen=True, eq=False)
class Prepared:
    """``Requests`` under certain settings, whatever the capacity."""

    kind: Array
    block: Array
    size: Array
    """Rounded."""
    segment: Array
    """The bytes of a new segment, should this request need one."""
    address: Array
    """Where the recorded run's new segment lay, if it had this size."""
    free_list: Array
    """Of an allocation: where its block comes from. Of ``RELEASE_POOL``: the pool."""
    num_blocks: int
    free_lists: tuple[tuple[int, bool, int], ...]
    """Stream, small or not, pool."""
    top_address: int
    """Segments at no recorded address lie below this."""

    @property
    def largest_request(self) -> int:
        return int(self.size.max(initial=0))

    @cached_property
    def stretches(self) -> tuple[RepeatedStretch, ...]:
        """Where the requests are the same again and again; none where segments lie at recorded addresses."""
        return () if self.address.any() else find_stretches(self.kind, self.block, (self.size, self.free_list))


def prepare(requests: Requests, settings: AllocatorSettings, *, use_recorded_addresses: bool) -> Prepared:
    size, segment = round_sizes(requests.size, settings)
    small = size <= SMALL_REQUEST
    number, free_lists = _find_free_lists(requests, small)
    number = np.where(requests.kind == RequestKind.RELEASE_POOL, requests.pool, number)
    if use_recorded_addresses and requests.segment_address.any():
        address = np.where(requests.segment_size == segment, requests.segment_address, 0)
    else:
        address = np.zeros(len(segment), dtype=np.int64)
    known = address[address > 0]
    return Prepared(
        kind=requests.kind.astype(np.uint8, copy=False),
        block=requests.block.astype(np.int64, copy=False),
        size=size,
        segment=segment,
        address=address.astype(np.int64, copy=False),
        free_list=number.astype(np.int64, copy=False),
        num_blocks=requests.num_blocks,
        free_lists=free_lists,
        top_address=min(TOP_ADDRESS, int(known.min()) if len(known) else TOP_ADDRESS),
    )


def _find_free_lists(requests: Requests, small: Array) -> tuple[Array, tuple[tuple[int, bool, int], ...]]:
    """Per request the number of its free list, and what each free list is for."""
    num_streams = int(requests.stream.max(initial=0)) + 1
    key = (requests.pool.astype(np.int64) * num_streams + requests.stream) * 2 + small
    allocs = requests.kind == RequestKind.ALLOC
    distinct = np.unique(key[allocs])
    number = np.searchsorted(distinct, key) if len(distinct) > 2 else (key > distinct[0]).astype(np.int64) if len(distinct) else key
    return number, tuple((k // 2 % num_streams, bool(k % 2), k // 2 // num_streams) for k in distinct.tolist())
