"""``memory_tracking`` and snapshots as callers use them: one dictionary that is theirs to change, at a cost that does not grow."""

import copy
import sys

import pytest
import torch
from helpers.tracker_readings import FSDPMemTracker, MemTracker, TorchMemTracker, in_words
from torch import nn
from torch.distributed._tools.mem_tracker import _ModState
from torch.distributed.fsdp import fully_shard

KINDS = [TorchMemTracker, MemTracker]
CPU = torch.device("cpu")


def model_of():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def tracked_step(kind):
    model, tracker = model_of(), kind()
    tracker.track_external(model)
    with tracker:
        model(torch.randn(5, 8)).sum().backward()
    return model, tracker


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_one_dictionary_of_the_same_entries(kind):
    model, tracker = tracked_step(kind)
    found = tracker.memory_tracking
    assert tracker.memory_tracking is found
    assert tracker.memory_tracking[model[0]] is found[model[0]]
    assert len(copy.deepcopy(found)) == len(found) == 4  # PyTorch's planner copies it


@pytest.mark.parametrize("kind", KINDS)
def test_what_callers_change_stays(kind):
    model, tracker = tracked_step(kind)
    entry = tracker.memory_tracking[model[0]]
    entry.parameter_mem = 7
    entry.snapshots[_ModState.PRE_FW][0][CPU]["Total"] = 8
    entry.mine = 9
    del tracker.memory_tracking[model[2]]
    tracker.memory_tracking[model[1]] = "mine"
    assert model[2] not in tracker.memory_tracking
    found = tracker.memory_tracking[model[0]]
    assert (found.parameter_mem, found.snapshots[_ModState.PRE_FW][0][CPU]["Total"], found.mine) == (7, 8, 9)
    assert tracker.memory_tracking[model[1]] == "mine"


def test_what_callers_changed_stays_while_the_run_goes_on():
    model, tracker = tracked_step(MemTracker)
    entry = tracker.memory_tracking[model[0]]
    entry.parameter_mem = 7
    entry.snapshots[_ModState.PRE_FW][0][CPU]["Total"] = 8
    before = len(entry.snapshots[_ModState.POST_FW])
    del tracker.memory_tracking[model[2]]
    with tracker:
        model(torch.randn(5, 8)).sum().backward()
    found = tracker.memory_tracking
    assert found[model[0]] is entry
    assert entry.parameter_mem == 7
    assert entry.snapshots[_ModState.PRE_FW][0][CPU]["Total"] == 8
    assert len(entry.snapshots[_ModState.PRE_FW]) == len(entry.snapshots[_ModState.POST_FW]) == before + 1
    assert len(found[model[2]].snapshots[_ModState.PRE_FW]) == 1, "taken away, it begins anew"


@pytest.mark.parametrize("kind", KINDS)
def test_clearing_it_is_to_reset_the_statistics(kind):
    for clear in (lambda tracker: tracker.memory_tracking.clear(), lambda tracker: tracker.reset_mod_stats()):
        model, tracker = tracked_step(kind)
        held = tracker.memory_tracking
        clear(tracker)
        assert len(tracker.memory_tracking) == 0
        with tracker:
            model(torch.randn(5, 8)).sum().backward()
        assert tracker.memory_tracking is held
        assert [len(taken) for taken in held[model].snapshots.values()] == 6 * [1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_may_be_replaced(kind):
    _, tracker = tracked_step(kind)
    mine = type(tracker.memory_tracking)()
    tracker.memory_tracking = mine
    assert tracker.memory_tracking is mine


def test_entries_of_a_sharded_model_are_kept_too(world):
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    for layer in model:
        fully_shard(layer, mesh=world)
    fully_shard(model, mesh=world)
    tracker = FSDPMemTracker(model)
    with tracker:
        model(torch.randn(4, 16)).sum().backward()
        entry = tracker.memory_tracking[model[0]]
        model(torch.randn(4, 16)).sum().backward()
    assert tracker.memory_tracking[model[0]] is entry
    assert {len(taken) for taken in entry.snapshots.values()} == {2}


# -- cost ------------------------------------------------------------------------------------------------------------------------


def lines_of(work):
    """How many lines of Python some work runs: a cost that no other load on the machine changes."""
    num_lines = 0

    def count(frame, event, argument):
        nonlocal num_lines
        num_lines += event == "line"
        return count

    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(None)
    return num_lines


def test_a_snapshot_costs_the_same_however_long_the_run_is():
    model, tracker, costs = nn.Linear(4, 4), MemTracker(), []
    with tracker:
        for _ in range(12):
            for _ in range(40):
                model(torch.randn(2, 4)).sum().backward()
            tracker.get_tracker_snapshot()
            tracker.get_tracker_snapshot("peak")
            model(torch.randn(2, 4)).sum().backward()
            costs.append(lines_of(lambda: (tracker.get_tracker_snapshot(), tracker.get_tracker_snapshot("peak"))))
    assert costs[-1] <= 1.1 * costs[1]
    read = [len(part) for part in tracker._tracker._builder._done["events"]]
    assert sum(read) > 4000
    assert min(read) < 100, "a snapshot reads what is new, not everything again"


def test_asking_again_computes_nothing_again(monkeypatch):
    _, tracker = tracked_step(MemTracker)
    tracker.memory_tracking  # noqa: B018
    monkeypatch.setattr(tracker, "_module_stats", None)
    assert len(tracker.memory_tracking) == 4


def test_snapshots_in_the_middle_are_those_of_the_whole_ledger():
    """A snapshot that was asked for often, and one that was asked for once in the end, are the same."""

    def peaks(asks_often):
        torch.manual_seed(0)
        model, tracker = model_of(), MemTracker()
        optimizer = torch.optim.Adam(model.parameters())
        if asks_often:
            for module in model.modules():
                module.register_forward_hook(lambda *args: tracker.get_tracker_snapshot("peak") and None)
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(3):
                model(torch.randn(50, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return in_words(tracker.get_tracker_snapshot("peak")), in_words(tracker.get_tracker_snapshot())

    assert peaks(asks_often=True) == peaks(asks_often=False)
