"""A tracker is a dispatch mode that others build on: a subclass may do something around each operator."""

import pytest
import torch
from helpers.tracker_readings import FSDPMemTracker, MemTracker, TorchFSDPMemTracker, TorchMemTracker, current
from torch import nn
from torch.distributed._tools import ilp_utils, runtime_estimator, sac_estimator
from torch.distributed._tools.ilp_utils import aggregate_stats
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.compat import ModTracker


def counting(kind):
    class Counting(kind):
        num_products = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self.num_products += result is not NotImplemented and func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return result

    return Counting


@pytest.mark.parametrize("kind", [TorchMemTracker, MemTracker])
def test_a_subclass_sees_every_operator(kind):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8)

    def step(tracker):
        tracker.track_external(model, x)
        with tracker:
            model(x).sum().backward()
            held = current(tracker)
        model.zero_grad()
        return held

    tracker = counting(kind)()
    assert isinstance(tracker, TorchDispatchMode)
    assert step(tracker) == step(kind())
    assert tracker.num_products == 5  # two of forward, two for weights and one for an input in backward
    model(x)
    assert tracker.num_products == 5, "and none after it"


@pytest.mark.parametrize("kind", [TorchFSDPMemTracker, FSDPMemTracker])
def test_a_subclass_sees_the_operators_on_local_tensors(kind, world):
    model = nn.Linear(16, 16)
    fully_shard(model, mesh=world)
    tracker = counting(kind)(model)
    with tracker:
        model(torch.randn(4, 16)).sum().backward()
    assert tracker.num_products == 2


def test_what_a_subclass_allocates_is_recorded():
    class Hoarding(MemTracker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if func is torch.ops.aten.relu.default:
                self.kept = torch.zeros(100)
            return result

    with Hoarding() as tracker:
        torch.relu(torch.ones(2))
        assert current(tracker)["Total"] == 400


def test_nested_trackers_of_one_kind():
    tracker = counting(MemTracker)()
    with tracker, tracker:
        torch.ones(2, 2) @ torch.ones(2, 2)
    torch.ones(2, 2) @ torch.ones(2, 2)
    assert tracker.num_products == 1


# -- inside PyTorch's own tools ------------------------------------------------------------------------------------------------


def test_our_trackers_inside_pytorchs_estimators(monkeypatch):
    """PyTorch's planner adds up what three instrumented runs said; two of them follow modules with a ModTracker."""
    for tools in (runtime_estimator, sac_estimator):
        monkeypatch.setattr(tools, "ModTracker", ModTracker)
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.Linear(8, 4))
    batch = torch.randn(5, 8)

    estimator = runtime_estimator.RuntimeEstimator()
    estimator.fake_mode = object()
    monkeypatch.setattr(runtime_estimator, "active_fake_mode", lambda: None, raising=False)
    tracker = MemTracker()
    tracker.track_external(model, batch)
    with tracker:
        model(batch).sum().backward()
    model.zero_grad()
    sac = sac_estimator.SACEstimator()
    assert isinstance(estimator._mod_tracker, ModTracker)
    assert isinstance(sac._mod_tracker, ModTracker)
    estimator._mod_tracker.__enter__()
    model(batch).sum().backward()
    estimator._mod_tracker.__exit__()
    names = {"Sequential", "Sequential.0", "Sequential.0.0", "Sequential.0.1", "Sequential.0.2", "Sequential.1"}
    estimator.mod_fw_pre_order = estimator.mod_fw_post_order = sorted(names)
    estimator.mod_bw_pre_order = estimator.mod_bw_post_order = sorted(names, reverse=True)
    estimator.mod_runtimes = {name: {"fw": 1.0, "bw": 2.0} for name in names}
    figures = aggregate_stats(model, tracker, estimator, sac, torch.device("cpu"))
    assert {stats["fqn"] for stats in figures["mod_stats"]} == names
    root = next(stats for stats in figures["mod_stats"] if stats["fqn"] == "Sequential")
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert (root["param_per_module"], root["grad_per_module"], root["grad_total"]) == (weights, weights, 0)
    assert ilp_utils.parse_module_info(figures).nodes
