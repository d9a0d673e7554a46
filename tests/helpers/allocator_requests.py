"""Requests for tests: from a few words, at random, and from what a real GPU's allocator logged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from helpers import ROOT
from memfit.allocator import AllocatorSettings, RequestKind, Requests, parse_alloc_conf
from memfit.units import MIB, parse_bytes

TRUTH = ROOT / "benchmarks" / "truth"
MEASURED: dict[str, dict[str, Any]] = json.loads((TRUTH / "settings" / "settings.json").read_text())

Row = tuple[int, int, int, int, int]
"""Kind, block, size, stream, pool."""


def make_requests(rows: list[Row]) -> Requests:
    kind, block, size, stream, pool = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Requests(
        kind=kind,
        block=block,
        size=size,
        stream=stream,
        pool=pool,
        event=np.arange(len(rows)),
        segment_address=nothing,
        segment_size=nothing,
        num_blocks=int(block.max(initial=-1)) + 1,
        num_events=len(rows),
        source="test",
    )


def asked(text: str) -> Requests:
    """``"a 3MiB; b 1MiB stream 1; free a; empty"``: what a program asked for.

    ``a SIZE [stream N] [pool N]`` allocates, ``free a`` frees, ``unused a`` frees what another stream may still use, ``done a``
    says that it no longer does, ``empty`` empties the cache, ``release N`` gives a private pool up.
    """
    numbers: dict[str, int] = {}
    num_blocks = 0
    rows: list[Row] = []
    for statement in text.split(";"):
        match statement.split():
            case ["free" | "unused" | "done" as how, name]:
                kinds = {"free": RequestKind.FREE, "unused": RequestKind.FREE_REQUESTED, "done": RequestKind.FREE_COMPLETED}
                rows.append((kinds[how], numbers[name], 0, 0, 0))
            case ["empty"]:
                rows.append((RequestKind.EMPTY_CACHE, -1, 0, 0, 0))
            case ["release", pool]:
                rows.append((RequestKind.RELEASE_POOL, -1, 0, 0, int(pool)))
            case [name, size, *where]:
                places = dict(zip(where[::2], map(int, where[1::2]), strict=True))
                numbers[name] = num_blocks  # a name may come again once its block is freed
                num_blocks += 1
                rows.append((RequestKind.ALLOC, numbers[name], parse_bytes(size), places.get("stream", 0), places.get("pool", 0)))
    return make_requests(rows)


SIZES = st.one_of(
    st.integers(1, 2048),
    st.integers(1, MIB + 1024),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB, 11 * MIB]),
    st.integers(MIB, 12 * MIB),
    st.integers(10 * MIB, 150 * MIB),
)


@st.composite
def random_requests(draw: st.DrawFn) -> Requests:
    """Any program at all, on two streams and two private pools."""
    rows: list[Row] = []
    live: list[int] = []
    pending: list[int] = []
    num_blocks = 0
    length = draw(st.sampled_from([3, 20, 100]))
    for choice in draw(st.lists(st.integers(0, 19), min_size=length - 3, max_size=length)):
        if choice < 10 or not (live or pending):
            pool = draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
            rows.append((RequestKind.ALLOC, num_blocks, draw(SIZES), draw(st.integers(0, 1)), pool))
            live.append(num_blocks)
            num_blocks += 1
        elif choice < 14 and live:
            rows.append((RequestKind.FREE, live.pop(draw(st.integers(0, len(live) - 1))), 0, 0, 0))
        elif choice < 16 and live:
            pending.append(live.pop(draw(st.integers(0, len(live) - 1))))
            rows.append((RequestKind.FREE_REQUESTED, pending[-1], 0, 0, 0))
        elif choice < 18 and pending:
            rows.append((RequestKind.FREE_COMPLETED, pending.pop(draw(st.integers(0, len(pending) - 1))), 0, 0, 0))
        elif choice == 18:
            rows.append((RequestKind.EMPTY_CACHE, -1, 0, 0, 0))
        else:
            rows.append((RequestKind.RELEASE_POOL, -1, 0, 0, draw(st.integers(1, 2))))
    return make_requests(rows)


@st.composite
def repeated_requests(draw: st.DrawFn, most_repeats: int = 40) -> Requests:
    """A program that does the same again and again, with other things before and after. What it asks for in one repeat may live
    until a later one, or for ever."""
    num_repeats = draw(st.integers(9, most_repeats))
    lifetimes = st.one_of(st.integers(1, 12), st.integers(1, 40), st.just(NEVER) if draw(st.booleans()) else st.integers(1, 6))
    places = st.tuples(SIZES, lifetimes, st.integers(0, 1), st.sampled_from([0, 0, 0, 1]))
    body = draw(st.lists(places, min_size=1, max_size=8))
    empties = draw(st.sampled_from([None, None, None, 0]))
    before = [(i, *draw(places)) for i in range(draw(st.integers(0, 6)))]
    start = len(before)
    during = [(start + i, *body[i % len(body)]) for i in range(num_repeats * len(body))]
    end = start + len(during)
    after = [(end + i, *draw(places)) for i in range(draw(st.integers(0, 8)))]
    events: list[tuple[float, Row]] = []
    for number, (time, size, lifetime, stream, pool) in enumerate([*before, *during, *after]):
        events.append((time, (RequestKind.ALLOC, number, size, stream, pool)))
        if time + lifetime < end + len(after) + 20:
            events.append((time + lifetime - 0.5, (RequestKind.FREE, number, 0, 0, 0)))
        if empties is not None and start <= time < end and (time - start) % len(body) == empties:
            events.append((time + 0.25, (RequestKind.EMPTY_CACHE, -1, 0, 0, 0)))
    return make_requests([row for _, row in sorted(events, key=lambda event: event[0])])


NEVER = 10**6
"""Longer than any program of tests."""

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20,max_non_split_rounding_mb:30",
    "max_split_size_mb:64,expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,16:8,>:1]",
    "large_segment_size_mb:21",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.3",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.2,max_split_size_mb:32",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.2,expandable_segments:True",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.2",
)
TOTAL_MEMORY = 2000 * MIB


def random_settings() -> st.SearchStrategy[AllocatorSettings]:
    return st.builds(parse_alloc_conf, st.sampled_from(CONFS), st.sampled_from(["2.12", "2.13"])) | st.builds(
        parse_alloc_conf, st.sampled_from(CONFS[:-1]), st.just("2.11")
    )


CAPACITIES = st.none() | st.integers(0, 3000).map(lambda mebibytes: mebibytes * MIB)
