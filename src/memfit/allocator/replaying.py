"""A run's requests, served by the allocator: what it reserved, when, and whether it completed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memfit.allocator.alloc_conf import parse_alloc_conf
from memfit.allocator.changes import Changes, History
from memfit.allocator.engine import Outcome, Prepared, Rules, SegmentChange, prepare, run
from memfit.allocator.engine.python import AllocatorRun
from memfit.allocator.requests import RequestKind, Requests
from memfit.allocator.segments import SegmentState, segments_of
from memfit.allocator.settings import DEFAULT_TORCH_VERSION, AllocatorSettings
from memfit.allocator.statistics import count_statistics
from memfit.ledger.schema import Array


@dataclass(frozen=True)
class OutOfMemory:
    """A request that could not be served even after all cached memory was freed."""

    request: int
    event: int
    """The event of the source behind the request."""
    asked: int
    """Requested bytes."""
    needed: int
    """Bytes of the new segment that it needed."""
    allocated: int
    reserved: int
    cached: int
    """Reserved and free, but in pieces that are too small or belong to another stream."""
    capacity: int
    """What the allocator could get from the GPU."""

    @property
    def shortfall(self) -> int:
        return self.needed - (self.capacity - self.reserved)


@dataclass(frozen=True, eq=False)
class Replay:
    """The requests, served by the allocator. Levels are after each served request."""

    requests: Requests
    settings: AllocatorSettings
    prepared: Prepared
    rules: Rules
    outcome: Outcome

    @property
    def num_served(self) -> int:
        return self.outcome.num_done

    @property
    def completes(self) -> bool:
        return self.num_served == len(self.requests)

    @cached_property
    def history(self) -> History:
        """The changes of each quantity that torch counts."""
        return History(self.requests, self.prepared, self.rules, self.outcome)

    # -- over time -----------------------------------------------------------------------------------------------------------

    @cached_property
    def allocated(self) -> Array:
        """What ``torch.cuda.memory_allocated()`` would return."""
        return self._level(self.history.allocated_bytes)

    @cached_property
    def active(self) -> Array:
        """Allocated, or freed but still used by other streams."""
        return self._level(self.history.active_bytes)

    @cached_property
    def reserved(self) -> Array:
        """What ``torch.cuda.memory_reserved()`` would return."""
        return self._level(self.history.reserved_bytes)

    @cached_property
    def inactive_split(self) -> Array:
        """Fragmentation: free bytes in segments that are still in use, which cannot be returned to the GPU."""
        return self._level(self.history.inactive_split_bytes)

    def per_event(self, level: Array) -> Array:
        """A level after each event of the source, instead of after each request."""
        served = np.cumsum(np.bincount(self.requests.event[: self.num_served], minlength=self.requests.num_events))
        return np.append(0, level)[served]

    def _level(self, changes: Changes) -> Array:
        return changes.level(self.num_served + 1)[: self.num_served]

    # -- figures -------------------------------------------------------------------------------------------------------------

    @cached_property
    def peak_allocated(self) -> int:
        """What ``torch.cuda.max_memory_allocated()`` would return."""
        return int(self.allocated.max(initial=0))

    @cached_property
    def peak_reserved(self) -> int:
        """What ``torch.cuda.max_memory_reserved()`` would return."""
        return int(self.reserved.max(initial=0))

    @property
    def peak_event(self) -> int:
        """The event of the source at which most was allocated, -1 if nothing was."""
        return int(self.requests.event[np.argmax(self.allocated)]) if self.num_served else -1

    @property
    def num_alloc_retries(self) -> int:
        """How often memory ran short and freeing cached memory helped."""
        return self.outcome.num_alloc_retries

    @property
    def given_back(self) -> int:
        """Bytes of cached memory returned to the GPU during the run."""
        log = self.outcome.segment_log
        return int(log[np.isin(log[:, 1], (SegmentChange.FREE, SegmentChange.UNMAP)), 4].sum())

    @cached_property
    def out_of_memory(self) -> OutOfMemory | None:
        """Where and why memory ran out; ``None`` if it did not."""
        if self.completes:
            return None
        request, history = self.num_served, self.history
        allocated, active, reserved = (
            int(changes.amount.sum()) for changes in (history.allocated_bytes, history.active_bytes, history.reserved_bytes)
        )
        return OutOfMemory(
            request=request,
            event=int(self.requests.event[request]),
            asked=int(self.requests.size[request]),
            needed=int(self.prepared.segment[request]),
            allocated=allocated,
            reserved=reserved,
            cached=reserved - active,
            capacity=min(self.rules.capacity, self.rules.limit),
        )

    def memory_stats(self) -> dict[str, int]:
        """What ``torch.cuda.memory_stats()`` would return at the end of the run, or where memory ran out."""
        pool_of_list = np.array([pool for _, _, pool in self.prepared.free_lists] or [0])
        return count_statistics(self.requests, self.settings, self.outcome, self.history, pool_of_list)

    def segments_at(self, request: int | None = None) -> list[SegmentState]:
        """The segments after the first ``request`` requests, by default after all served ones. Replays the requests."""
        return next(self.segments_over([self.num_served if request is None else request]))

    def segments_over(self, requests: Iterable[int]) -> Iterator[list[SegmentState]]:
        """The same after each of several rising numbers of requests, in one replay."""
        again = AllocatorRun(self.prepared, self.rules)
        asked = np.zeros(self.requests.num_blocks, dtype=np.int64)
        allocates = self.requests.kind == RequestKind.ALLOC
        asked[self.requests.block[allocates]] = self.requests.size[allocates]
        sizes = asked.tolist()
        for request in requests:
            again.serve(request)
            yield segments_of(again, sizes)


def replay(
    requests: Requests,
    settings: AllocatorSettings | None = None,
    *,
    capacity: int | None = None,
    total_memory: int | None = None,
) -> Replay:
    """Serves the requests with the allocator of ``settings``, by default that of the recorded run.

    ``capacity`` is what the allocator can get from the GPU in bytes, ``total_memory`` what the GPU has; without them there is
    always enough. Where the requests were recorded on a GPU and memory never runs short, segments lie where they lay.
    """
    settings = settings or recorded_settings(requests)
    prepared = prepare(requests, settings, use_recorded_addresses=capacity is None)
    rules = Rules.of(settings, capacity, total_memory, largest_request=prepared.largest_request)
    return Replay(requests, settings, prepared, rules, run(prepared, rules))


def recorded_settings(requests: Requests) -> AllocatorSettings:
    """The settings of the recorded run, as far as its source says them."""
    return parse_alloc_conf(requests.alloc_conf, requests.torch_version or DEFAULT_TORCH_VERSION)
