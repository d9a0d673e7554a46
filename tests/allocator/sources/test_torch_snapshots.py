import contextlib
import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers.allocator_requests import TRUTH

from memfit.allocator import RequestKind, load_requests, replay
from memfit.errors import TraceError
from memfit.units import MIB

BASE = 0x7F00_0000_0000


def entry(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": BASE + address * MIB, "size": size * MIB, "stream": 0, "time_us": 0, **more}


SEGMENT = {
    "device": 0,
    "address": BASE,
    "total_size": 20 * MIB,
    "stream": 0,
    "segment_pool_id": (0, 1),
    "blocks": [
        {"size": 3 * MIB, "requested_size": 3 * MIB, "state": "active_allocated"},
        {"size": 5 * MIB, "requested_size": 5 * MIB, "state": "active_pending_free"},
        {"size": 12 * MIB, "requested_size": 0, "state": "inactive"},
    ],
}
SNAPSHOT: dict[str, Any] = {
    "segments": [SEGMENT],
    "device_traces": [[entry("alloc", 0, 3), entry("alloc", 100, 30)]],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": False},
}


def write(path: Path, snapshot: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(snapshot, protocol))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_read(path: Path, protocol: int):
    requests = load_requests(write(path, SNAPSHOT, protocol))
    assert (requests.source, requests.num_events) == ("snapshot", 2)
    assert requests.alloc_conf == "max_split_size_mb:64"


def test_blocks_in_use_that_the_history_does_not_have_were_there_first(path: Path):
    requests = load_requests(write(path, SNAPSHOT))
    assert requests.size.tolist() == [5 * MIB, 3 * MIB, 30 * MIB]
    assert "1 blocks (5.00 MiB)" in requests.warnings[0]


def test_the_segment_tells_the_pool(path: Path):
    requests = load_requests(write(path, SNAPSHOT))
    assert requests.pool.tolist() == [1, 1, 0]
    assert requests.pool_ids == ((0, 0), (0, 1))
    assert replay(requests).peak_reserved == 50 * MIB


def test_entries_that_name_their_pool_are_believed(path: Path):
    snapshot = copy.deepcopy(SNAPSHOT)
    snapshot["device_traces"][0] += [
        entry("alloc", 200, 40, pool_id=(0, 7)),
        entry("free_requested", 200, 40, pool_id=(0, 7)),
        entry("free_completed", 200, 40, pool_id=(0, 7)),
        entry("segment_free", 200, 40, pool_id=(0, 7)),
    ]
    requests = load_requests(write(path, snapshot))
    assert requests.pool_ids == ((0, 0), (0, 1), (0, 7))
    assert requests.kind.tolist()[-1] == RequestKind.RELEASE_POOL
    assert replay(requests).reserved[-1] == 50 * MIB


def test_the_device_with_the_longest_history_counts(path: Path):
    snapshot = SNAPSHOT | {"device_traces": [[entry("alloc", 0, 1)], [entry("alloc", 0, 2), entry("alloc", 4, 2)], []]}
    requests = load_requests(write(path, snapshot))
    assert requests.size.tolist() == [2 * MIB, 2 * MIB]
    assert "counted on cuda:1 only; the snapshot also has cuda:0" in requests.warnings


def test_real_snapshots_are_read():
    requests = load_requests(TRUTH / "settings" / "pools.pickle")
    assert requests.pool_ids == ((0, 0), (0, 1), (0, 2))
    assert requests.warnings == ()


class Executes:
    """Unpickled the ordinary way, this would run a command."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_nothing_in_a_pickle_is_executed(path: Path, tmp_path: Path):
    trace = tmp_path / "was-here"
    write(path, SNAPSHOT | {"extra": Executes(trace)})
    with pytest.raises(TraceError, match=r"posix\.mkdir|nt\.mkdir"):
        load_requests(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists(), "the proof itself must be able to fail"


def test_objects_outside_the_file_are_refused(path: Path):
    path.write_bytes(b"\x80\x04\x8c\x03abcQ.")
    with pytest.raises(TraceError, match="outside the file"):
        load_requests(path)


@pytest.mark.parametrize(
    "snapshot",
    [
        [],
        {},
        {"segments": []},
        {"segments": [], "device_traces": 3},
        {"segments": [], "device_traces": [[3]]},
        {"segments": [], "device_traces": [[{"addr": 1}]]},
        SNAPSHOT | {"device_traces": [[entry("alloc", 0, 3) | {"size": "3"}]]},
        SNAPSHOT | {"device_traces": [[entry("alloc", 0, 3) | {"size": 3.5}]]},
        SNAPSHOT | {"device_traces": [[entry("alloc", 0, 3) | {"addr": 2**70}]]},
        SNAPSHOT | {"segments": [SEGMENT | {"blocks": None}]},
        SNAPSHOT | {"segments": [SEGMENT | {"address": "here"}]},
        SNAPSHOT | {"allocator_settings": 3},
    ],
)
def test_what_is_no_snapshot_is_refused(path: Path, snapshot: Any):
    with pytest.raises(TraceError, match="snapshot of PyTorch's allocator"):
        load_requests(write(path, snapshot))


def test_a_snapshot_without_a_history_says_what_to_do(path: Path):
    with pytest.raises(TraceError, match="_record_memory_history"):
        load_requests(write(path, SNAPSHOT | {"device_traces": [[], []]}))


def test_a_snapshot_that_contradicts_itself_is_refused(path: Path):
    with pytest.raises(TraceError, match="contradicts itself"):
        load_requests(write(path, SNAPSHOT | {"device_traces": [[entry("alloc", 0, 3), entry("alloc", 0, 3)]]}))


@pytest.mark.parametrize("length", [1, 2, 10, 300, 60_000])
def test_a_truncated_snapshot_is_refused(path: Path, length: int):
    path.write_bytes((TRUTH / "settings" / "late.pickle").read_bytes()[:length])
    with pytest.raises(TraceError):
        load_requests(path)


@pytest.mark.parametrize("position", range(5, 60_000, 6007))
def test_a_damaged_snapshot_never_ends_in_another_error(path: Path, position: int):
    data = bytearray((TRUTH / "settings" / "late.pickle").read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
    with contextlib.suppress(TraceError):
        found = replay(load_requests(path))
        assert found.peak_reserved >= found.peak_allocated >= 0
