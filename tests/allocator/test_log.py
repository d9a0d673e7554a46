"""The log that an allocator would have written: it says what the replay says, and can be read back."""

import numpy as np
from helpers.allocator_requests import CAPACITIES, TOTAL_MEMORY, asked, random_requests, random_settings
from hypothesis import given

from memfit.allocator import replay
from memfit.allocator.log import AllocatorLog, write_log
from memfit.allocator.sources.entries import ACTIONS, requests_from_entries
from memfit.ledger.schema import Array
from memfit.units import MIB

RISES = {"alloc": 1, "free_completed": -1}
SEGMENT_RISES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def level(log: AllocatorLog, signs: dict[str, int], num_requests: int) -> Array:
    """What the entries with these actions come to after each request."""
    changes = np.zeros(num_requests, dtype=np.int64)
    sign = np.array([signs.get(action, 0) for action in ACTIONS])
    np.add.at(changes, log.request, sign[log.entries.action] * log.entries.size)
    return np.cumsum(changes)


@given(random_requests(), random_settings(), CAPACITIES)
def test_the_log_comes_to_what_the_replay_counts(requests, settings, capacity):
    done = replay(requests, settings, capacity=capacity, total_memory=TOTAL_MEMORY)
    log, served = write_log(done), done.num_served
    assert np.array_equal(level(log, SEGMENT_RISES, served), done.reserved)
    assert np.array_equal(level(log, RISES, served), done.history.requested_bytes.level(served + 1)[:served])
    assert log.segments == done.segments_at()


@given(random_requests(), random_settings())
def test_the_log_can_be_read_back(requests, settings):
    log = write_log(replay(requests, settings, total_memory=TOTAL_MEMORY))
    nothing = log.entries.where(slice(0), 0)
    back = requests_from_entries(log.entries, nothing, source="log", pool_ids=tuple((0, pool) for pool in range(3)))
    assert back.num_blocks == (log.entries.action == ACTIONS.index("alloc")).sum()


def test_a_free_that_the_allocator_waited_for_completes_before_memory_is_given_back():
    done = replay(asked("a 30MiB; unused a; b 40MiB; done a"), capacity=50 * MIB)
    log = write_log(done)
    assert [ACTIONS[action] for action in log.entries.action] == [
        *("segment_alloc", "alloc", "free_requested"),
        *("free_completed", "segment_free", "segment_alloc", "alloc"),
    ]
    assert log.request.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert log.block.tolist() == [-1, 0, 0, 0, -1, -1, 1]
