"""Hand-made requests with exact bytes."""

import pytest
from helpers.allocator_requests import asked

from memfit.allocator import AllocatorSettings, parse_alloc_conf, replay
from memfit.units import GIB, MIB


def reserved(text: str, conf: str = "", **more: int) -> int:
    return replay(asked(text), parse_alloc_conf(conf), **more).peak_reserved


def allocated(text: str) -> int:
    return replay(asked(text)).peak_allocated


# -- segments and splitting --------------------------------------------------------------------------------------------------


def test_small_blocks_share_a_segment():
    assert reserved("a 1MiB; b 512; c 1000KiB") == 2 * MIB
    assert reserved("a 1MiB; b 1MiB; c 1B") == 4 * MIB


def test_medium_blocks_share_a_larger_one():
    assert reserved("a 9MiB; b 9MiB; c 2MiB") == 20 * MIB


def test_large_blocks_have_their_own():
    assert reserved("a 10MiB; b 11MiB") == 22 * MIB


def test_a_rest_of_one_mebibyte_stays_with_the_block():
    assert allocated("a 11MiB") == 12 * MIB


def test_a_larger_rest_is_split_off():
    assert allocated("a 10752KiB") == 10752 * 1024
    assert reserved("a 10752KiB; b 1100KiB") == 12 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken():
    assert reserved("a 40MiB; b 20MiB; free a; free b; c 18MiB; d 40MiB") == 60 * MIB


def test_free_neighbours_become_one_block():
    assert reserved("a 10MiB; free a; b 5MiB; c 5MiB; free b; free c; d 10MiB") == 10 * MIB


def test_blocks_in_use_keep_their_neighbours_apart():
    assert reserved("a 30MiB; free a; b 10MiB; c 10MiB; d 10MiB; free b; free d; e 20MiB") == 50 * MIB


def test_streams_do_not_share():
    assert reserved("a 20MiB stream 1; free a; b 20MiB") == 40 * MIB


def test_private_pools_do_not_share_and_are_kept_until_released():
    assert reserved("a 20MiB pool 1; free a; b 20MiB") == 40 * MIB
    kept = replay(asked("a 20MiB pool 1; free a; empty"))
    given_up = replay(asked("a 20MiB pool 1; free a; release 1"))
    assert (kept.reserved[-1], given_up.reserved[-1]) == (20 * MIB, 0)


def test_emptying_the_cache_gives_whole_segments_back():
    run = replay(asked("a 30MiB; b 5MiB; c 5MiB; free a; free b; empty"))
    assert run.reserved.tolist()[-1] == 20 * MIB
    assert run.given_back == 30 * MIB


# -- which of several equal blocks -------------------------------------------------------------------------------------------

TWO_OF_A_SIZE = "a 20MiB; b 20MiB; free a; free b; c 20MiB"


def segment_taken(text: str, version: str) -> int:
    """The number, in the order they were obtained, of the segment in which the last block lies."""
    run = replay(asked(text), AllocatorSettings(torch_version=version))
    segments = run.segments_at()
    last = run.requests.num_blocks - 1
    by_age = sorted(segments, key=lambda segment: -segment.address)
    return next(i for i, segment in enumerate(by_age) if any(block.number == last for block in segment.blocks))


@pytest.mark.parametrize(("version", "taken"), [("2.11", 1), ("2.12", 0), ("2.13", 0)])
def test_the_lowest_address_is_that_of_the_newest_segment(version: str, taken: int):
    assert segment_taken(TWO_OF_A_SIZE, version) == taken


# b is the front of the first segment, split after the second was obtained: a younger block in an older segment.
SPLIT_AND_WHOLE = "a 40MiB; d 20MiB; free a; b 20MiB; c 20MiB; free d; free b; e 20MiB"


@pytest.mark.parametrize(("version", "taken"), [("2.11", 1), ("2.12", 1), ("2.13", 0)])
def test_the_front_of_a_split_block_is_younger_than_its_segment(version: str, taken: int):
    assert segment_taken(SPLIT_AND_WHOLE, version) == taken


# -- limits ------------------------------------------------------------------------------------------------------------------


def test_memory_that_runs_short_is_found_in_the_cache():
    run = replay(asked("a 30MiB; free a; b 40MiB"), capacity=40 * MIB)
    assert run.completes
    assert (run.num_alloc_retries, run.given_back, run.peak_reserved) == (1, 30 * MIB, 40 * MIB)


def test_running_out_tells_where_and_why():
    run = replay(asked("a 12MiB; b 3MiB; b2 3MiB; free a; free b; c 30MiB"), capacity=40 * MIB)
    oom = run.out_of_memory
    assert oom is not None
    assert (oom.request, oom.event, oom.asked, oom.needed) == (5, 5, 30 * MIB, 30 * MIB)
    assert (oom.allocated, oom.reserved, oom.cached, oom.capacity) == (3 * MIB, 20 * MIB, 17 * MIB, 40 * MIB)
    assert oom.shortfall == 10 * MIB
    assert not run.completes
    assert run.memory_stats()["num_ooms"] == 1


def test_a_fraction_of_the_gpu_is_a_limit_too():
    settings = parse_alloc_conf("per_process_memory_fraction:0.5")
    assert not replay(asked("a 600MiB"), settings, total_memory=GIB).completes
    assert replay(asked("a 500MiB"), settings, total_memory=GIB).completes


def test_rejecting_at_the_limit_gives_nothing_back_first():
    settings = parse_alloc_conf("per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", "2.12")
    run = replay(asked("a 400MiB; free a; b 500MiB"), settings, total_memory=GIB)
    assert (run.num_served, run.given_back, run.memory_stats()["num_oom_rejections"]) == (2, 0, 1)


def test_blocks_beyond_the_split_size_are_kept_for_their_like():
    conf = "max_split_size_mb:64"
    assert reserved("a 100MiB; free a; b 30MiB", conf) == 130 * MIB
    assert reserved("a 100MiB; free a; b 90MiB", conf) == 100 * MIB
    assert reserved("a 100MiB; free a; b 70MiB", conf) == 170 * MIB


def test_oversize_blocks_are_given_back_before_everything_else_is():
    settings = parse_alloc_conf("max_split_size_mb:64")
    run = replay(asked("a 100MiB; s 40MiB; free a; free s; b 70MiB"), settings, capacity=140 * MIB)
    assert (run.completes, run.num_alloc_retries, run.given_back) == (True, 0, 100 * MIB)


def test_garbage_is_collected_above_the_threshold():
    settings = parse_alloc_conf("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0")
    run = replay(asked("a 60MiB; free a; b 50MiB stream 1; c 30MiB stream 1"), settings, total_memory=200 * MIB)
    assert (run.peak_reserved, run.given_back) == (110 * MIB, 60 * MIB)


# -- frees that other streams hold up ----------------------------------------------------------------------------------------


def test_a_pending_free_is_not_allocated_but_cannot_be_reused():
    run = replay(asked("a 20MiB; unused a; b 20MiB; done a; c 20MiB"))
    assert run.peak_reserved == 40 * MIB
    assert run.allocated.tolist() == [20 * MIB, 0, 20 * MIB, 20 * MIB, 40 * MIB]
    assert run.active.tolist() == [20 * MIB, 20 * MIB, 40 * MIB, 20 * MIB, 40 * MIB]


def test_running_short_waits_for_pending_frees():
    run = replay(asked("a 20MiB; unused a; b 20MiB; done a"), capacity=20 * MIB)
    assert run.completes
    assert run.memory_stats()["num_sync_all_streams"] == 1
    assert run.active.tolist() == [20 * MIB, 20 * MIB, 20 * MIB, 20 * MIB]


# -- expandable segments -----------------------------------------------------------------------------------------------------


def test_expandable_segments_grow_by_pages():
    assert reserved("a 30MiB; b 9MiB", "expandable_segments:True") == 40 * MIB
    assert reserved("a 512; b 2MiB; c 1MiB", "expandable_segments:True") == 22 * MIB


def test_large_blocks_lie_back_to_back():
    text = "a 30MiB; b 30MiB; c 30MiB"
    assert reserved(text, "expandable_segments:True") == 100 * MIB
    run = replay(asked(text + "; free a; free b; free c; d 90MiB"), parse_alloc_conf("expandable_segments:True"))
    assert run.peak_reserved == 100 * MIB


def test_a_hole_is_preferred_to_the_end_that_could_grow():
    run = replay(asked("a 30MiB; b 30MiB; c 10MiB; free a; free c; d 10MiB"), parse_alloc_conf("expandable_segments:True"))
    addresses = {block.number: block.address for segment in run.segments_at() for block in segment.blocks if block.number >= 0}
    assert addresses[3] < addresses[1]


def test_only_whole_pages_are_given_back():
    run = replay(asked("a 30MiB; b 30MiB; c 5MiB; free b; empty"), parse_alloc_conf("expandable_segments:True"))
    assert run.given_back == 20 * MIB
    assert [segment.size for segment in run.segments_at()] == [40 * MIB, 20 * MIB]


def test_pages_that_were_given_back_are_mapped_again():
    run = replay(asked("a 30MiB; b 30MiB; free a; empty; c 25MiB"), parse_alloc_conf("expandable_segments:True"))
    assert run.reserved.tolist()[-2:] == [40 * MIB, 60 * MIB]


def test_pages_run_out_at_the_capacity():
    run = replay(asked("a 30MiB; b 30MiB"), parse_alloc_conf("expandable_segments:True"), capacity=59 * MIB)
    assert not run.completes
