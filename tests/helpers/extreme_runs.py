"""Runs that no real program makes: huge sizes, segments at one address, absurd settings. For hypothesis, and from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from helpers.allocator_requests import make_requests
from memfit.allocator import RequestKind, Requests, parse_alloc_conf
from memfit.allocator.engine import Prepared, Rules, prepare
from memfit.units import GIB, MIB, TIB

SIZES = (
    *(1, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 21 * MIB, 64 * MIB, 195 * MIB),
    *(GIB, 80 * GIB, TIB, 9 * TIB // 8 - 1, 9 * TIB // 8, 9 * TIB // 8 + 1, 2 * TIB, 2**47, 2**48 - 1),
)
CONFS = (
    "",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:64",
    "max_split_size_mb:20,large_segment_size_mb:200",
    "max_split_size_mb:20,max_non_split_rounding_mb:30",
    "max_split_size_mb:999999999999999999,max_non_split_rounding_mb:999999999999999999",
    "max_split_size_mb:64,expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,16:8,>:1]",
    "large_segment_size_mb:268435455",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.2,max_split_size_mb:32,large_segment_size_mb:200",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.2,expandable_segments:True",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:1.0",
)
CAPACITIES = (None, 0, 1, 200 * MIB, GIB, 80 * GIB, TIB, 3 * TIB, 2**50, 2**62, 2**63, 2**80)
MEMORIES = (None, 1, 512 * MIB, 80 * GIB, TIB, 2**50, 2**61, 2**80)
ADDRESSES = (0, 0, 0, 2**44, 2**44 + 20 * MIB, 2**57 - 1)


class Choices(Protocol):
    """Who decides: hypothesis, which can make a failing run smaller, or a seed."""

    def number(self, least: int, most: int) -> int: ...

    def one_of(self, items: tuple[Any, ...]) -> Any: ...


@dataclass(frozen=True)
class Seeded:
    source: random.Random

    def number(self, least: int, most: int) -> int:
        return self.source.randint(least, most)

    def one_of(self, items: tuple[Any, ...]) -> Any:
        return self.source.choice(items)


@dataclass(frozen=True)
class Drawn:
    draw: st.DrawFn

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def one_of(self, items: tuple[Any, ...]) -> Any:
        return self.draw(st.sampled_from(items))


@dataclass(frozen=True, eq=False)
class ExtremeRun:
    """What an engine is given."""

    requests: Requests
    prepared: Prepared
    rules: Rules
    said: str
    """How it was made, for whoever has to look into a failure."""


def extreme_run(choose: Choices) -> ExtremeRun:
    requests = _requests(choose)
    conf = choose.one_of(CONFS)
    version = choose.one_of(("2.12", "2.13") if "throw" in conf else ("2.11", "2.12", "2.13"))
    capacity, memory = choose.one_of(CAPACITIES), choose.one_of(MEMORIES)
    how = parse_alloc_conf(conf, version)
    if how.per_process_memory_fraction is not None and memory is None:
        memory = TIB
    prepared = prepare(requests, how, use_recorded_addresses=bool(choose.number(0, 1)))
    largest = choose.one_of((0, prepared.largest_request))
    rules = Rules.of(how, capacity, memory, largest_request=largest)
    return ExtremeRun(requests, prepared, rules, f"{conf!r} on torch {version}, {capacity} of {memory} bytes")


def seeded_run(seed: int) -> ExtremeRun:
    return extreme_run(Seeded(random.Random(seed)))


@st.composite
def extreme_runs(draw: st.DrawFn) -> ExtremeRun:
    return extreme_run(Drawn(draw))


def _requests(choose: Choices) -> Requests:
    rows: list[tuple[int, int, int, int, int]] = []
    live: list[int] = []
    pending: list[int] = []
    places: list[tuple[int, int]] = []
    num_blocks = total = 0
    for _ in range(choose.one_of((3, 20, 60))):
        choice, place = choose.number(0, 19), (0, 0)
        if choice < 10 or not (live or pending):
            size = choose.one_of(SIZES)
            if total + size >= 2**59:
                continue
            total += size
            rows.append((RequestKind.ALLOC, num_blocks, size, choose.number(0, 1), choose.one_of((0, 0, 0, 1))))
            place = (choose.one_of(ADDRESSES), choose.one_of((2 * MIB, 20 * MIB, 64 * MIB, 200 * MIB)))
            live.append(num_blocks)
            num_blocks += 1
        elif choice < 15 and live:
            rows.append((RequestKind.FREE, live.pop(choose.number(0, len(live) - 1)), 0, 0, 0))
        elif choice < 16 and live:
            pending.append(live.pop(choose.number(0, len(live) - 1)))
            rows.append((RequestKind.FREE_REQUESTED, pending[-1], 0, 0, 0))
        elif choice < 17 and pending:
            rows.append((RequestKind.FREE_COMPLETED, pending.pop(choose.number(0, len(pending) - 1)), 0, 0, 0))
        elif choice < 19:
            rows.append((RequestKind.EMPTY_CACHE, -1, 0, 0, 0))
        else:
            rows.append((RequestKind.RELEASE_POOL, -1, 0, 0, 1))
        places.append(place)
    address, size = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return replace(make_requests(rows), segment_address=address, segment_size=size)
