"""Requests served one by one end where a replay of them ends."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.allocator_requests import TOTAL_MEMORY, TRUTH, asked, random_requests, random_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memfit.allocator import AllocatorSettings, RequestKind, Requests, load_requests, replay
from memfit.allocator.engine import native
from memfit.allocator.live import LiveAllocator
from memfit.allocator.replaying import OutOfMemory
from memfit.units import MIB

MOST = 2**50


def of_the_default_pool(requests: Requests) -> Requests:
    rows = np.flatnonzero(requests.kind != RequestKind.RELEASE_POOL)
    return requests.take(rows, pool=np.zeros(len(rows), dtype=np.int64))


def serve(live: LiveAllocator, requests: Requests) -> OutOfMemory | None:
    return live.serve(requests.kind, requests.block, requests.size, requests.stream)[1]


@pytest.fixture(params=[True, False], ids=["in C", "in Python"])
def engine(request, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("there is no C compiler")


pytestmark = pytest.mark.usefixtures("engine")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_requests(), random_settings(), st.integers(0, 400 * MIB))
def test_it_runs_out_where_a_replay_does(requests, how, capacity):
    requests = of_the_default_pool(requests)
    whole = replay(requests, how, capacity=capacity, total_memory=TOTAL_MEMORY)
    live = LiveAllocator(how, capacity, TOTAL_MEMORY)
    failure = serve(live, requests)
    assert (failure is None) == whole.completes
    if failure is None:
        assert live.reserved == (int(whole.reserved[-1]) if len(requests) else 0)
        return
    expected = whole.out_of_memory
    assert expected is not None
    names = ("asked", "needed", "allocated", "reserved", "capacity")
    assert [getattr(failure, name) for name in names] == [getattr(expected, name) for name in names]


def test_it_goes_on_after_it_ran_out():
    live = LiveAllocator(AllocatorSettings(), 100 * MIB, 100 * MIB)
    assert live.allocate(0, 60 * MIB, 0) is None
    failure = live.allocate(1, 50 * MIB, 0)
    assert failure is not None
    assert (failure.asked, failure.allocated, failure.shortfall) == (50 * MIB, 60 * MIB, 10 * MIB)
    assert live.allocate(2, 40 * MIB, 0) is None
    live.free(0)
    assert live.allocate(3, 60 * MIB, 0) is None
    assert (live.allocated, live.reserved) == (100 * MIB, 100 * MIB)


def test_memory_that_another_stream_uses_is_not_there_until_it_is_done():
    live = LiveAllocator(AllocatorSettings(), 60 * MIB, 60 * MIB)
    assert live.allocate(0, 60 * MIB, 0) is None
    live.request_free(0)
    live.complete_free(0)
    assert live.allocate(1, 60 * MIB, 0) is None
    assert live.reserved == 60 * MIB


def test_on_a_real_trace():
    requests = of_the_default_pool(load_requests(TRUTH / "traces" / "trace_llama_amp_ckpt.npz"))
    live = LiveAllocator(AllocatorSettings(), MOST, MOST)
    assert serve(live, requests) is None
    assert live.reserved == replay(requests, AllocatorSettings(), capacity=MOST).peak_reserved
    assert serve(LiveAllocator(AllocatorSettings(), 0, MOST), asked("a 20MiB")) is not None


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_requests(), random_settings(), st.integers(0, 400 * MIB))
def test_one_by_one_is_as_at_once(requests, how, capacity):
    """After what is refused the program goes on, and gives that block up."""
    requests = of_the_default_pool(requests)
    once, single = LiveAllocator(how, capacity, TOTAL_MEMORY), LiveAllocator(how, capacity, TOTAL_MEMORY)
    columns = [requests.kind, requests.block, requests.size, requests.stream]
    refused: set[int] = set()
    begin = 0
    while begin < len(requests):
        keep = ~np.isin(requests.block[begin:], list(refused))
        rest = [column[begin:][keep] for column in columns]
        served, failure = once.serve(*rest)
        for kind, block, size, stream in zip(*(column[:served].tolist() for column in rest), strict=True):
            assert one(single, kind, block, size, stream) is None
        if failure is None:
            break
        assert one(single, *(int(column[served]) for column in rest)) == failure
        refused.add(int(rest[1][served]))
        begin += int(np.flatnonzero(keep)[served]) + 1
    assert (once.allocated, once.reserved) == (single.allocated, single.reserved)


def one(live: LiveAllocator, kind: int, block: int, size: int, stream: int) -> OutOfMemory | None:
    match kind:
        case RequestKind.ALLOC:
            return live.allocate(block, size, stream)
        case RequestKind.FREE:
            live.free(block)
        case RequestKind.FREE_REQUESTED:
            live.request_free(block)
        case RequestKind.FREE_COMPLETED:
            live.complete_free(block)
        case _:
            live.empty_cache()
    return None
