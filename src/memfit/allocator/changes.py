"""How each quantity that PyTorch's allocator counts changed in the course of a run.

Every statistic and every timeline is derived from these; the names are those of ``torch.cuda.memory_stats()``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from memfit.allocator.engine import Outcome, Prepared, Rules, SegmentChange
from memfit.allocator.requests import RequestKind, Requests
from memfit.ledger.schema import Array

POOLS: Final = ("all", "large_pool", "small_pool")


@dataclass(frozen=True, eq=False)
class Changes:
    """Rises and falls of one quantity, in order. Requests count as time; one request can cause several."""

    request: Array
    amount: Array
    small: Array
    """Whether it happened in the small pool."""

    def amounts(self, pool: str) -> Array:
        return self.amount if pool == "all" else self.amount[self.small == (pool == "small_pool")]

    def level(self, num_requests: int, pool: str = "all") -> Array:
        """The quantity after each request."""
        chosen = slice(None) if pool == "all" else self.small == (pool == "small_pool")
        steps = np.zeros(num_requests, dtype=np.int64)
        np.add.at(steps, self.request[chosen], self.amount[chosen])
        return np.cumsum(steps)

    def only(self, chosen: Array) -> Changes:
        return Changes(self.request[chosen], self.amount[chosen], self.small[chosen])


class History:
    """The changes of each quantity, worked out when they are asked for.

    A request that ran out of memory counts for what it gave back without success.
    """

    def __init__(self, requests: Requests, prepared: Prepared, rules: Rules, outcome: Outcome) -> None:
        self._requests, self._prepared, self._rules, self._outcome = requests, prepared, rules, outcome
        self._small_list = np.array([small for _, small, _ in prepared.free_lists] or [False])

    # -- blocks --------------------------------------------------------------------------------------------------------------

    @cached_property
    def allocation(self) -> Changes:
        return _counted(self.allocated_bytes)

    @cached_property
    def allocated_bytes(self) -> Changes:
        kind = self._requests.kind[: self._outcome.num_done]
        freed = np.flatnonzero((kind == RequestKind.FREE) | (kind == RequestKind.FREE_REQUESTED))
        return self._block_changes(self._outcome.block_bytes, freed, self._requests.block[freed])

    @cached_property
    def active(self) -> Changes:
        return _counted(self.active_bytes)

    @cached_property
    def active_bytes(self) -> Changes:
        return self._until_completed(self._outcome.block_bytes)

    @cached_property
    def requested_bytes(self) -> Changes:
        asked = np.zeros(self._requests.num_blocks, dtype=np.int64)
        asked[self._requests.block[self._births]] = self._requests.size[self._births]
        return self._until_completed(asked)

    @cached_property
    def oversize_allocations(self) -> Changes:
        return _counted(self.allocated_bytes.only(abs(self.allocated_bytes.amount) >= self._rules.max_split))

    @cached_property
    def _births(self) -> Array:
        """The requests that were given a block."""
        return np.flatnonzero(self._requests.kind[: self._outcome.num_done] == RequestKind.ALLOC)

    def _until_completed(self, size: Array) -> Changes:
        end = self._outcome.completed
        ended = np.flatnonzero(end < len(self._requests))
        ended = ended[np.argsort(end[ended], kind="stable")]
        return self._block_changes(size, end[ended], ended)

    def _block_changes(self, size: Array, end: Array, ended: Array) -> Changes:
        """Of blocks of that ``size`` each, from their births until the requests ``end``, at which the blocks ``ended`` do."""
        births = self._births
        # At a request that ran short, frees complete before its own block is allocated: they come first.
        request = np.concatenate([end, births])
        order = np.argsort(request, kind="stable")
        block = np.concatenate([ended, self._requests.block[births]])[order]
        amount = np.where(order < len(end), -size[block], size[block])
        return Changes(request[order], amount, self._small_block[block])

    @cached_property
    def _small_block(self) -> Array:
        small = np.zeros(self._requests.num_blocks, dtype=bool)
        small[self._requests.block[self._births]] = self._small_list[self._prepared.free_list[self._births]]
        return small

    # -- segments ------------------------------------------------------------------------------------------------------------

    @cached_property
    def reserved_bytes(self) -> Changes:
        return self._rows.only(self._outcome.segment_log[:, 1] <= SegmentChange.UNMAP)

    @cached_property
    def segment(self) -> Changes:
        return _counted(self._segment_bytes)

    @cached_property
    def oversize_segments(self) -> Changes:
        return _counted(self._segment_bytes.only(abs(self._segment_bytes.amount) >= self._rules.max_split))

    @cached_property
    def _rows(self) -> Changes:
        request, change, free_list, _, size = self._outcome.segment_log.T
        sign = np.array([1, -1, 1, -1, 1, -1])[change]
        return Changes(request, sign * size, self._small_list[free_list])

    @cached_property
    def _segment_bytes(self) -> Changes:
        return self._rows.only(np.isin(self._outcome.segment_log[:, 1], (SegmentChange.ALLOC, SegmentChange.FREE)))

    # -- free memory that shares its segment with blocks in use ----------------------------------------------------------------

    @cached_property
    def inactive_split(self) -> Changes:
        return _from_levels(self._outcome.num_inactive)

    @cached_property
    def inactive_split_bytes(self) -> Changes:
        """Expandable segments have none: their pages can be given back."""
        num_requests = len(self._outcome.num_inactive)
        if self._rules.expandable:
            return _from_levels(np.zeros((num_requests, 2), dtype=np.int64))
        idle = self._rows.only(self._outcome.segment_log[:, 1] >= SegmentChange.IDLE)
        levels = [
            self._segment_bytes.level(num_requests + 1, pool)
            - self.active_bytes.level(num_requests + 1, pool)
            - idle.level(num_requests + 1, pool)
            for pool in ("large_pool", "small_pool")
        ]
        return _from_levels(np.stack(levels, axis=1)[:num_requests])


def _counted(changes: Changes) -> Changes:
    return Changes(changes.request, np.sign(changes.amount), changes.small)


def _from_levels(levels: Array) -> Changes:
    """The changes between the levels in two columns, of the large and the small pool."""
    request, small = np.repeat(np.arange(len(levels)), 2), np.tile([False, True], len(levels))
    return Changes(request, np.diff(levels, axis=0, prepend=0).ravel(), small)
