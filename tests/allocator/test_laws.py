"""What must hold for any program, any settings and any GPU."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from helpers.allocator_requests import CAPACITIES, TOTAL_MEMORY, make_requests, random_requests, random_settings
from hypothesis import given

from memfit.allocator import AllocatorSettings, Replay, RequestKind, Requests, replay, smallest_fit
from memfit.allocator.engine import Outcome
from memfit.units import TIB


def run(requests: Requests, settings: AllocatorSettings, capacity: int | None = None) -> Replay:
    return replay(requests, settings, capacity=capacity, total_memory=TOTAL_MEMORY)


def unlimited(settings: AllocatorSettings) -> AllocatorSettings:
    return replace(settings, per_process_memory_fraction=None)


@given(random_requests(), random_settings(), CAPACITIES)
def test_reserved_is_never_below_active_nor_active_below_allocated(requests, settings, capacity):
    result = run(requests, settings, capacity)
    assert (result.reserved >= result.active).all()
    assert (result.active >= result.allocated).all()
    assert (result.allocated >= 0).all()
    assert (result.inactive_split >= 0).all()
    assert (result.reserved >= result.active + result.inactive_split).all()


@given(random_requests(), random_settings(), CAPACITIES)
def test_the_gpu_never_gives_more_than_it_has(requests, settings, capacity):
    if capacity is not None:
        assert run(requests, settings, capacity).peak_reserved <= capacity


@given(random_requests(), random_settings())
def test_freeing_everything_and_emptying_the_cache_reserves_nothing(requests, settings):
    ends = {RequestKind.FREE, RequestKind.FREE_REQUESTED}
    freed = {int(b) for k, b in zip(requests.kind, requests.block, strict=True) if k in ends}
    columns = zip(requests.kind, requests.block, requests.size, requests.stream, requests.pool, strict=True)
    rows = [tuple(int(value) for value in row) for row in columns]
    rows += [(RequestKind.FREE, block, 0, 0, 0) for block in range(requests.num_blocks) if block not in freed]
    rows += [(RequestKind.EMPTY_CACHE, -1, 0, 0, 0), *((RequestKind.RELEASE_POOL, -1, 0, 0, pool) for pool in (1, 2))]
    result = run(make_requests(rows), unlimited(settings))
    assert (result.reserved[-1], result.allocated[-1], result.inactive_split[-1]) == (0, 0, 0)
    assert result.segments_at() == []


@given(random_requests(), random_settings(), CAPACITIES)
def test_the_same_requests_give_the_same_result(requests, settings, capacity):
    one, other = run(requests, settings, capacity), run(requests, settings, capacity)
    assert one.memory_stats() == other.memory_stats()
    assert np.array_equal(one.reserved, other.reserved)
    assert one.out_of_memory == other.out_of_memory


@given(random_requests(), random_settings())
def test_what_is_reserved_with_memory_to_spare_is_always_enough(requests, settings):
    settings = unlimited(settings)
    free = run(requests, settings)
    limited = run(requests, settings, free.peak_reserved)
    assert limited.completes
    assert np.array_equal(limited.reserved, free.reserved)
    assert limited.num_alloc_retries == 0


@given(random_requests(), random_settings(), CAPACITIES)
def test_statistics_agree_with_the_timeline(requests, settings, capacity):
    result = run(requests, settings, capacity)
    stats = result.memory_stats()
    assert stats["allocated_bytes.all.peak"] == result.peak_allocated
    assert stats["reserved_bytes.all.peak"] == result.peak_reserved
    assert stats["active_bytes.all.peak"] >= int(result.active.max(initial=0))
    for name in {key.rpartition(".")[0] for key in stats if key.endswith(".current")}:
        assert stats[f"{name}.current"] == stats[f"{name}.allocated"] - stats[f"{name}.freed"]
        assert 0 <= stats[f"{name}.current"] <= stats[f"{name}.peak"] <= stats[f"{name}.allocated"]
    for name in {key.partition(".all.")[0] for key in stats if key.endswith(".all.current")}:
        assert stats[f"{name}.all.current"] == stats[f"{name}.small_pool.current"] + stats[f"{name}.large_pool.current"]


@given(random_requests(), random_settings(), CAPACITIES)
def test_segments_agree_with_the_statistics(requests, settings, capacity):
    result = run(requests, settings, capacity)
    if not result.completes:
        return
    stats, segments = result.memory_stats(), result.segments_at()
    blocks = [block for segment in segments for block in segment.blocks]
    assert sum(segment.size for segment in segments) == stats["reserved_bytes.all.current"]
    assert sum(segment.active_bytes for segment in segments) == stats["active_bytes.all.current"]
    assert sum(block.requested for block in blocks) == stats["requested_bytes.all.current"]
    assert sum(block.number >= 0 for block in blocks) == stats["active.all.current"]
    split = [s for s in segments if not s.expandable and not s.idle]
    assert sum(segment.inactive_bytes for segment in split) == stats["inactive_split_bytes.all.current"]
    assert sum(block.state == "inactive" for segment in split for block in segment.blocks) == stats["inactive_split.all.current"]


@given(random_requests(), random_settings(), CAPACITIES)
def test_segments_lie_apart_and_blocks_fill_them(requests, settings, capacity):
    segments = run(requests, settings, capacity).segments_at()
    for one, other in pairwise(segments):
        assert one.address + one.size <= other.address
    for segment in segments:
        ends = [block.address + block.size for block in segment.blocks]
        assert [block.address for block in segment.blocks] == [segment.address, *ends[:-1]]
        assert ends[-1] == segment.address + segment.size


@given(random_requests(), random_settings())
def test_the_smallest_fit_lies_between_what_is_held_and_what_is_reserved(requests, settings):
    least = smallest_fit(requests, settings)
    assert dict(least.probes)[least.capacity]
    assert all(completes for capacity, completes in least.probes if capacity >= least.capacity)
    held = int(run(requests, unlimited(settings)).history.requested_bytes.level(len(requests) or 1).max(initial=0))
    if not (requests.kind == RequestKind.FREE_REQUESTED).any():
        assert least.capacity >= held
    if settings.per_process_memory_fraction is None:
        assert least.capacity <= run(requests, settings).peak_reserved


def test_the_outcome_of_no_requests_is_nothing():
    result = run(make_requests([]), AllocatorSettings())
    assert isinstance(result.outcome, Outcome)
    assert (result.peak_allocated, result.peak_reserved, result.completes, result.peak_event) == (0, 0, True, -1)
    assert smallest_fit(make_requests([])).capacity == 0


@given(random_requests(), random_settings(), CAPACITIES)
def test_capacities_between_what_was_granted_and_refused_have_the_same_run(requests, settings, capacity):
    settings = unlimited(settings)
    one = replay(requests, settings, capacity=capacity)
    ends = one.outcome.most_granted, min(one.outcome.least_refused, TIB) - 1
    for other in (replay(requests, settings, capacity=end) for end in ends):
        assert (other.num_served, other.memory_stats()) == (one.num_served, one.memory_stats())
        assert np.array_equal(other.outcome.segment_log, one.outcome.segment_log)
