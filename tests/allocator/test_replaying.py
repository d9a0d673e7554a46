import numpy as np
import pytest
from helpers.allocator_requests import asked, make_requests

from memfit.allocator import AllocatorSettings, RequestKind, parse_alloc_conf, replay, requests_from_ledger
from memfit.errors import ConfigError
from memfit.testing import ledger
from memfit.units import MIB


def test_levels_after_each_request():
    run = replay(asked("a 30MiB; b 3MiB; free a; c 11MiB"))
    assert run.allocated.tolist() == [30 * MIB, 33 * MIB, 3 * MIB, 14 * MIB]
    assert run.reserved.tolist() == [30 * MIB, 50 * MIB, 50 * MIB, 50 * MIB]
    assert run.inactive_split.tolist() == [0, 17 * MIB, 17 * MIB, 6 * MIB]


def test_levels_after_each_event_of_a_ledger():
    run = replay(requests_from_ledger(ledger("step; alloc 30MiB a; enter forward; exit; free a; step")))
    assert run.per_event(run.allocated).tolist() == [0, 30 * MIB, 30 * MIB, 30 * MIB, 0, 0]
    assert run.per_event(run.reserved).tolist() == [0, *[30 * MIB] * 5]
    assert run.peak_event == 1


def test_the_segments_at_any_moment():
    run = replay(asked("a 3MiB; b 5MiB; unused a; c 100"))
    small, large = run.segments_at()
    assert (small.small, small.size, large.small, large.size) == (True, 2 * MIB, False, 20 * MIB)
    assert [(block.size, block.requested, block.state, block.number) for block in large.blocks] == [
        (3 * MIB, 3 * MIB, "active_pending_free", 0),
        (5 * MIB, 5 * MIB, "active_allocated", 1),
        (12 * MIB, 0, "inactive", -1),
    ]
    assert (large.active_bytes, large.inactive_bytes, large.idle) == (8 * MIB, 12 * MIB, False)
    assert [segment.size for segment in run.segments_at(1)] == [20 * MIB]
    assert run.segments_at(0) == []
    assert [*run.segments_over([0, 1, run.num_served])] == [[], run.segments_at(1), run.segments_at()]


def test_a_free_that_running_short_completed_is_not_held_any_more():
    run = replay(asked("a 20MiB; unused a; b 20MiB; done a"), capacity=20 * MIB)
    assert [block.number for segment in run.segments_at() for block in segment.blocks] == [1]


def test_the_statistics_of_a_version_are_its_own():
    requests = asked("a 20MiB pool 1")
    assert "num_oom_rejections" not in replay(requests, AllocatorSettings(torch_version="2.11")).memory_stats()
    assert "num_oom_rejections" in replay(requests, AllocatorSettings(torch_version="2.12")).memory_stats()
    named = replay(requests_in_pool(), AllocatorSettings(torch_version="2.13")).memory_stats()
    assert named["reserved_bytes_by_private_pools.0_4.large_pool.peak"] == 20 * MIB


def requests_in_pool():
    requests = asked("a 20MiB pool 1; b 2MiB")
    return type(requests)(**vars(requests) | {"pool_ids": ((0, 0), (0, 4))})


def test_oversize_blocks_are_counted():
    stats = replay(asked("a 100MiB; free a; b 3MiB"), parse_alloc_conf("max_split_size_mb:64")).memory_stats()
    assert (stats["oversize_allocations.peak"], stats["oversize_allocations.current"], stats["oversize_segments.current"]) == (
        1,
        0,
        1,
    )
    assert stats["max_split_size"] == 64 * MIB


def test_settings_default_to_those_of_the_recording():
    requests = asked("a 30MiB")
    recorded = type(requests)(**vars(requests) | {"alloc_conf": "expandable_segments:True", "torch_version": "2.13.0+cu130"})
    run = replay(recorded)
    assert (run.settings.expandable_segments, run.settings.version, run.peak_reserved) == (True, (2, 13), 40 * MIB)


def test_a_share_of_an_unknown_gpu_is_refused():
    with pytest.raises(ConfigError, match="name the GPU"):
        replay(asked("a 1MiB"), parse_alloc_conf("per_process_memory_fraction:0.5"))


@pytest.mark.parametrize("more", [{"capacity": -1}, {"total_memory": 0}])
def test_a_gpu_that_cannot_be(more: dict[str, int]):
    with pytest.raises(ConfigError, match="cannot have"):
        replay(asked("a 1MiB"), **more)


@pytest.mark.parametrize(
    "rows",
    [
        [(RequestKind.FREE, 0, 0, 0, 0)],
        [(RequestKind.ALLOC, 0, 1, 0, 0), (RequestKind.ALLOC, 0, 1, 0, 0)],
        [(RequestKind.ALLOC, 0, 1, 0, 0), (RequestKind.FREE, 0, 0, 0, 0), (RequestKind.FREE, 0, 0, 0, 0)],
        [(RequestKind.ALLOC, 0, 1, 0, 0), (RequestKind.FREE_COMPLETED, 0, 0, 0, 0)],
        [(RequestKind.ALLOC, -4, 1, 0, 0)],
        [(RequestKind.ALLOC, 0, 0, 0, 0)],
        [(RequestKind.ALLOC, 0, -5, 0, 0)],
        [(RequestKind.ALLOC, 0, 2**48, 0, 0)],
        [(RequestKind.ALLOC, i, 2**47, 0, 0) for i in range(2**13)],
        [(RequestKind.ALLOC, 0, 1, -1, 0)],
        [(RequestKind.ALLOC, 0, 1, 0, -1)],
        [(17, 0, 1, 0, 0)],
    ],
)
def test_requests_that_no_program_makes_are_refused(rows: list):
    with pytest.raises(ConfigError):
        replay(make_requests(rows))


def test_levels_are_as_long_as_what_was_served():
    run = replay(asked("a 30MiB; b 30MiB; c 30MiB"), capacity=70 * MIB)
    assert [len(level) for level in (run.allocated, run.active, run.reserved, run.inactive_split)] == [2, 2, 2, 2]
    assert np.array_equal(run.reserved, [30 * MIB, 60 * MIB])
