"""PyTorch's own snapshots of a process that ran out of memory."""

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers.torch_snapshots import AT_THE_OOM, LOAD, OOM, TRACE, TRAIN, block, entry, segment

from memfit.errors import ConfigError, TraceError
from memfit.explain import explain
from memfit.explain.from_snapshot import place
from memfit.explain.unusable import Reason
from memfit.units import MIB


def write(path: Path, snapshot: Any) -> Path:
    path.write_bytes(pickle.dumps(snapshot))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


def test_what_was_asked_for_and_what_there_was(path: Path):
    found = explain(write(path, AT_THE_OOM))
    assert (found.source, found.ran_out, found.asked) == ("snapshot", True, 300 * MIB)
    assert (found.allocated, found.reserved, found.capacity) == (400 * MIB, 600 * MIB, 700 * MIB)
    assert [(group.reason, group.size_bytes, group.num_pieces) for group in found.unusable] == [(Reason.TOO_SMALL, 200 * MIB, 2)]
    assert found.holdings.where == "train.py:33 in step"


def test_places_stand_for_modules(path: Path):
    owners = explain(write(path, AT_THE_OOM)).holdings.owners
    assert [(owner.owner, owner.num_members, owner.size_bytes) for owner in owners] == [("train.py:33 in step", 2, 400 * MIB)]


def test_settings_are_tried(path: Path):
    served = {remedy.what: remedy.served for remedy in explain(write(path, AT_THE_OOM)).remedies}
    # Two blocks of 200 and one of 300 fit into 700 where pages can be given back.
    assert served["expandable_segments:True"] is True
    assert served["roundup_power2_divisions:8"] is False
    assert not any("micro-batch" in what for what in served)


def test_what_the_failed_request_made_the_allocator_give_back_is_no_request(path: Path, tmp_path: Path):
    snapshot = copy.deepcopy(AT_THE_OOM)
    snapshot["device_traces"][0][:0] = [
        entry("segment_alloc", 5000, 40),
        entry("alloc", 5000, 40),
        entry("free_requested", 5000, 40),
        entry("free_completed", 5000, 40),
    ]
    snapshot["device_traces"][0].insert(-1, entry("segment_free", 5000, 40))
    found = explain(write(path, snapshot))
    assert not any("given back" in note for note in found.notes)
    assert (found.reserved, found.capacity) == (600 * MIB, 700 * MIB)


def later(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The same, dumped after the error was handled: a block is freed, another allocated, a segment given back, another obtained."""
    snapshot = copy.deepcopy(snapshot)
    snapshot["device_traces"][0] += [
        entry("free_requested", 300, 200),
        entry("free_completed", 300, 200),
        entry("segment_alloc", 2000, 50),
        entry("alloc", 2000, 50, LOAD),
    ]
    snapshot["segments"] = [segment(0, block(200), block(400, "inactive")), segment(2000, block(50))]
    return snapshot


def test_what_came_after_the_error_is_undone(path: Path, tmp_path: Path):
    at_once, in_time = explain(write(path, AT_THE_OOM)), explain(write(tmp_path / "later.pickle", later(AT_THE_OOM)))
    assert in_time.holdings == at_once.holdings
    assert (in_time.allocated, in_time.reserved, in_time.unusable) == (at_once.allocated, at_once.reserved, at_once.unusable)
    assert in_time.remedies == at_once.remedies


def test_a_segment_that_was_given_back_since_is_there_again(path: Path):
    snapshot = copy.deepcopy(AT_THE_OOM)
    snapshot["segments"] = []
    snapshot["device_traces"][0] += [
        *(entry(action, address, 200) for address in (0, 300) for action in ("free_requested", "free_completed")),
        entry("segment_free", 0, 600),
    ]
    found = explain(write(path, snapshot))
    assert (found.allocated, found.reserved) == (400 * MIB, 600 * MIB)
    assert found.holdings.owners[0].owner == "train.py:33 in step"


def test_pages_of_an_expandable_segment_that_were_mapped_since_are_gone(path: Path):
    snapshot = copy.deepcopy(AT_THE_OOM)
    snapshot["segments"] = [segment(0, block(200), block(100, "inactive"), block(200), block(200), is_expandable=True)]
    snapshot["device_traces"][0] += [entry("segment_map", 600, 100), entry("alloc", 500, 200)]
    found = explain(write(path, snapshot))
    assert (found.allocated, found.reserved) == (400 * MIB, 600 * MIB)


def test_other_reasons(path: Path):
    snapshot = copy.deepcopy(AT_THE_OOM)
    snapshot["segments"].append(segment(1000, block(30, "inactive"), block(10), segment_pool_id=(0, 1)))
    snapshot["segments"].append(segment(1100, block(20, "active_pending_free"), block(20, requested=19)))
    reasons = {group.reason: group.size_bytes for group in explain(write(path, snapshot)).unusable}
    assert reasons == {Reason.TOO_SMALL: 200 * MIB, Reason.OTHER_POOL: 30 * MIB, Reason.PENDING: 20 * MIB, Reason.SLACK: MIB}


def test_a_process_that_may_take_but_a_share(path: Path):
    snapshot = copy.deepcopy(AT_THE_OOM)
    snapshot["device_traces"][0][-1] = OOM | {"device_free": 5000 * MIB}
    found = explain(write(path, snapshot))
    assert found.capacity == 600 * MIB
    assert any("a share of it" in note for note in found.notes)


def test_without_an_error_it_shows_what_is_there(path: Path):
    snapshot = AT_THE_OOM | {"device_traces": [TRACE[:-1]]}
    found = explain(write(path, snapshot))
    assert (found.ran_out, found.asked, found.capacity, found.remedies) == (False, None, None, ())
    assert [(group.reason, group.size_bytes) for group in found.unusable] == [(Reason.FREE, 200 * MIB)]
    with pytest.raises(ConfigError, match="memfit fit"):
        explain(path, "T4")


def test_on_another_gpu(path: Path):
    found = explain(write(path, AT_THE_OOM), "T4")
    assert (found.ran_out, found.gpu) == (False, "T4")


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        (TRAIN, "train.py:33 in step"),
        (LOAD, "data.py:7 in load"),
        (TRAIN[:1], "functional.py:5 in linear"),
        ([{"filename": "/x/site-packages/memfit/record/recorder.py", "line": 1, "name": "f"}, *TRAIN], "train.py:33 in step"),
        ([{"filename": "/home/me/memfit/torch.py", "line": 1, "name": "f"}], "torch.py:1 in f"),
        ([{"filename": "C:\\work\\train.py", "line": 3, "name": "f"}], "train.py:3 in f"),
        ([], ""),
    ],
)
def test_the_line_outside_pytorch(frames: list[dict[str, Any]], name: str):
    assert place(frames) == name


class Executes:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_nothing_in_a_pickle_is_executed(path: Path, tmp_path: Path):
    with pytest.raises(TraceError, match="mkdir"):
        explain(write(path, AT_THE_OOM | {"extra": Executes(tmp_path / "was-here")}))
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    "odd",
    [
        {"frames": 3},
        {"frames": [{"name": "f"}]},
        {"device_free": "many"},
        {"size": None},
    ],
)
def test_an_odd_entry_is_refused(path: Path, odd: dict[str, Any]):
    snapshot = copy.deepcopy(AT_THE_OOM)
    snapshot["device_traces"][0][-1] = OOM | odd
    with pytest.raises(TraceError, match="snapshot of PyTorch's allocator"):
        explain(write(path, snapshot))
