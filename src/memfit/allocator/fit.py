"""The least memory under which a run completes, found by trying.

::

    floor                 answer                                    reserved, with memory to spare
      |  fails  |  fails  |█ completes ████ completes █████████████|
                          ^ bisection, then probes above it, closest together where they are closest to it

More memory does not always help: with a little more, the allocator may cut it up differently and run out after all. Such
exceptions were seen up to an eighth above the least capacity that works. So the answer is the least capacity at which the run
completes and above which every probe completed too; what was found to work below it counts as luck, and is listed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from memfit.allocator.engine import NO_LIMIT, Prepared, Rules, TriedRun, prepare, try_run
from memfit.allocator.replaying import recorded_settings
from memfit.allocator.requests import RequestKind, Requests
from memfit.allocator.settings import LARGE_ROUNDING, AllocatorSettings
from memfit.errors import ConfigError
from memfit.units import TIB

MANY_REQUESTS: Final = 500_000
"""From this many on, several capacities are tried at the same time: the engine in C runs beside Python."""
MOST_THREADS: Final = 4
"""Each of them needs memory for every request."""


@dataclass(frozen=True, eq=False)
class SmallestFit:
    """The smallest capacity with which the run completes."""

    capacity: int
    """What the allocator must be able to get from the GPU, in bytes."""
    peak_reserved: int
    """What is reserved with memory to spare."""
    probes: tuple[tuple[int, bool], ...]
    """Every capacity tried, and whether the run completed."""

    @property
    def lucky(self) -> tuple[int, ...]:
        """Smaller capacities at which it also completed, although it failed at some in between."""
        return tuple(capacity for capacity, completes in self.probes if completes and capacity < self.capacity)


def smallest_fit(requests: Requests, settings: AllocatorSettings | None = None) -> SmallestFit:
    """The smallest capacity with which the allocator of ``settings`` serves all requests.

    The capacity takes the place of ``per_process_memory_fraction``, if that is set.
    """
    settings = settings or recorded_settings(requests)
    trials = _Trials(requests, settings)
    fails = trials.steps(_floor(trials.prepared)) - 1
    peak_reserved = trials.at(None).most_granted
    enough = trials.steps(peak_reserved)
    while not trials.completes(enough):
        if enough * trials.step > NO_LIMIT:
            raise ConfigError("no memory is enough for these requests: check where they come from")
        enough += enough // 8 + 1
    found = _search(trials.all_complete, fails, enough)
    probes = tuple(sorted((steps * trials.step, completed) for steps, completed in trials.tried.items()))
    return SmallestFit(found * trials.step, peak_reserved, probes)


class _Trials:
    """Tries capacities, each once. They are counted in steps between which the outcome cannot change."""

    def __init__(self, requests: Requests, settings: AllocatorSettings) -> None:
        self.requests, self.settings = requests, settings
        self.prepared = prepare(requests, settings, use_recorded_addresses=False)
        self.step = math.gcd(LARGE_ROUNDING, settings.large_segment_bytes)
        self.tried: dict[int, bool] = {}
        self._alike: list[tuple[int, int, bool]] = []
        """Ranges of bytes in which all capacities have the same run, and whether it completes."""

    def steps(self, size: int) -> int:
        return -(-size // self.step)

    def completes(self, steps: int) -> bool:
        return self.all_complete([steps])[0]

    def all_complete(self, several: Sequence[int]) -> list[bool]:
        """For each of these capacities: whether the run completes."""
        new = [steps for steps in dict.fromkeys(several) if steps not in self.tried]
        num_threads = min(len(new), os.cpu_count() or 1, MOST_THREADS) if len(self.requests) >= MANY_REQUESTS else 1
        if num_threads > 1:
            with ThreadPoolExecutor(num_threads) as threads:
                found = list(threads.map(self._try, new))
        else:
            found = [self._try(steps) for steps in new]
        self.tried.update(zip(new, found, strict=True))
        return [self.tried[steps] for steps in several]

    def _try(self, steps: int) -> bool:
        """Whether the run completes: known where the run is that of a capacity tried before."""
        capacity = steps * self.step
        for first, end, completes in self._alike:
            if first <= capacity < end:
                return completes
        tried = self.at(capacity)
        if self.settings.per_process_memory_fraction is None:
            # Above a TiB the ranges of expandable segments grow with the capacity.
            self._alike.append((tried.most_granted, min(tried.least_refused, TIB), tried.completes))
        return tried.completes

    def at(self, capacity: int | None) -> TriedRun:
        """The run with this capacity in bytes; ``None`` stands for enough."""
        settings = replace(self.settings, per_process_memory_fraction=None)
        rules = Rules.of(settings, capacity, largest_request=self.prepared.largest_request)
        if capacity is not None and self.settings.per_process_memory_fraction is not None:
            rules = rules.limited(capacity, self.settings)
        return try_run(self.prepared, rules)


def _floor(prepared: Prepared) -> int:
    """The peak of the blocks in use, a lower bound for every allocator."""
    if not prepared.num_blocks:
        return 0
    allocates = prepared.kind == RequestKind.ALLOC
    frees = (prepared.kind == RequestKind.FREE) | (prepared.kind == RequestKind.FREE_REQUESTED)
    size = np.zeros(prepared.num_blocks, dtype=np.int64)
    size[prepared.block[allocates]] = prepared.size[allocates]
    change = size[prepared.block] * (allocates.astype(np.int8) - frees)
    return int(np.cumsum(change).max(initial=0))


def _search(all_complete: Callable[[Sequence[int]], list[bool]], fails: int, enough: int) -> int:
    """The least number that completes such that no probe above it fails; ``enough`` completes, ``fails`` cannot."""
    works = enough
    while True:
        works = _bisect(lambda middle: all_complete([middle])[0], fails, works)
        probes = [*_probes(works, enough), enough]
        failed = [i for i, completes in enumerate(all_complete(probes)) if not completes]
        if not failed:
            return works
        fails, works = probes[failed[-1]], probes[failed[-1] + 1]


def _bisect(completes: Callable[[int], bool], fails: int, works: int) -> int:
    while works - fails > 1:
        middle = (fails + works) // 2
        if completes(middle):
            works = middle
        else:
            fails = middle
    return works


def _probes(start: int, end: int) -> Iterator[int]:
    """Between ``start`` and ``end``: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... above ``start``."""
    power = 1
    while start + power < end:
        yield start + power
        if power > 1 and start + power + power // 2 < end:
            yield start + power + power // 2
        power *= 2
