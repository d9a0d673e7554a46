"""``ilp_utils`` and ``sac_ilp``: PyTorch's surface, plans that hold what they promise, and none of the faults that its own have.

PyTorch's solver needs pulp; where it is not installed, ``helpers.pulp_on_scipy`` stands in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.applied_checkpointing import apply_plan
from helpers.estimated_training import Estimated, Gpt, estimate, peak_of, tracked
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import ilp_utils as torchs_ilp_utils
from torch.distributed._tools.mem_tracker import MemTracker as TorchMemTracker
from torch.distributed.fsdp import fully_shard

import memfit.compat.estimators.problem as problem_module
from memfit.compat import SACStats, ilp_utils, sac_ilp
from memfit.compat.ilp_utils import Graph, ModuleInfo, display_bytes, get_peak_memory_runtime_baseline, parse_module_info
from memfit.compat.sac_ilp import get_optimal_checkpointing_policy_per_module, sac_milp
from memfit.errors import ConfigError, SolverTimeoutError

GIB = 2**30
FIXED = f"fixed in torch {torch.__version__}"
DIM, TOKENS = 64, (4, 64)
LAYERS = [f"Gpt.layers.{i}" for i in range(4)]


def gpt() -> nn.Module:
    return Gpt(4, DIM)


def tokens() -> torch.Tensor:
    return torch.zeros(TOKENS, dtype=torch.int64)


@pytest.fixture(scope="module")
def estimated() -> Estimated:
    return estimate(gpt, tokens)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch's ``sac_ilp``."""
    if importlib.util.find_spec("pulp") is None:
        monkeypatch.setitem(sys.modules, "pulp", importlib.import_module("helpers.pulp_on_scipy"))
    name = "torch.distributed._tools.sac_ilp"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


def peak_when_applied(decisions: dict[str, float], estimated: Estimated) -> int:
    """What a step takes that discards what a plan says."""
    with FakeTensorMode():
        model, batch = gpt(), tokens()
        optimizer = torch.optim.Adam(model.parameters())
        apply_plan(model, decisions, estimated.sac)
        return peak_of(tracked(model, optimizer, batch))


def budgets(estimated: Estimated, *shares: float) -> list[float]:
    """Between the least that checkpointing reaches and what is needed without: GiB."""
    least = sac_milp(estimated.graph, 1e-6).least_bytes
    return [(least + share * (estimated.peak_bytes - least)) / GIB for share in shares]


# -- a plan holds what it promises -------------------------------------------------------------------------------------------------


def test_without_a_plan_the_peak_is_the_tracked_one(estimated: Estimated):
    found = sac_milp(estimated.graph, 1.0)
    assert tuple(found) == ({}, 0.0, estimated.peak_bytes)
    assert found.status == "optimal"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_an_applied_plan_needs_what_was_said(estimated: Estimated, share: float):
    budget = budgets(estimated, share)[0] + 1e-9
    decisions, milliseconds, peak = sac_milp(estimated.graph, budget)
    applied = peak_when_applied(decisions, estimated)
    assert 0 < applied <= peak <= budget * GIB
    assert peak <= 1.03 * applied, "it is a prediction, not the budget"
    assert milliseconds > 0
    assert all(0 < share <= 1 for share in decisions.values())


def test_less_memory_costs_more_time(estimated: Estimated):
    times = [sac_milp(estimated.graph, budget)[1] for budget in budgets(estimated, 0.9, 0.6, 0.3, 0.05)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_the_peak_of_pytorchs_plan_is_the_budget_and_its_plan_needs_more(estimated: Estimated, theirs: Any):
    """It knows neither the optimizer's state nor what is in use outside modules."""
    budget = budgets(estimated, 0.4)[0]
    decisions, _, said = theirs.sac_milp(estimated.graph, budget)
    assert said == round(budget * GIB), FIXED
    assert peak_when_applied(decisions, estimated) > 1.02 * said, FIXED
    ours = sac_milp(estimated.graph, budget)
    assert ours[2] < budget * GIB
    assert peak_when_applied(ours[0], estimated) <= ours[2]


def test_pytorch_calls_feasible_what_no_checkpointing_reaches(estimated: Estimated, theirs: Any):
    budget = 0.9 * budgets(estimated, 0.0)[0]
    assert tuple(sac_milp(estimated.graph, budget)) == ({}, 0.0, -1)
    assert theirs.sac_milp(estimated.graph, budget)[2] > 0, FIXED


def test_infeasible_says_the_least_that_would_fit(estimated: Estimated, caplog: pytest.LogCaptureFixture):
    found = sac_milp(estimated.graph, 1e-4)
    assert (tuple(found), found.status) == (({}, 0.0, -1), "infeasible")
    assert "needs at least" in caplog.text
    assert sac_milp(estimated.graph, found.least_bytes / GIB + 1e-9)[2] == found.least_bytes


def test_optimizer_state_and_gradients_are_spread_and_gathered_units_are_not(estimated: Estimated):
    alone = sac_milp(estimated.graph, 1.0)[2]
    spread = sac_milp(estimated.graph, 1.0, world_size=4)[2]
    by_layer = sac_milp(estimated.graph, 1.0, world_size=4, fsdp_units=["Gpt", *LAYERS])[2]
    whole = sac_milp(estimated.graph, 1.0, world_size=4, fsdp_units=["Gpt"])[2]
    layer, model = estimated.graph.name2node[LAYERS[0]]["param_per_module"], estimated.graph.nodes[0]["param_per_module"]
    assert spread < by_layer < whole
    assert spread < alone
    assert whole - spread > model - layer, "all parameters are gathered at once, and their gradients are whole"


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_what_fsdp_takes_is_not_more_than_was_said(estimated: Estimated, world: Any):
    said = sac_milp(estimated.graph, 1.0, world_size=4, fsdp_units=["Gpt", *LAYERS])[2]
    model = Gpt(4, DIM)
    for layer in model.layers:
        fully_shard(layer, mesh=world)
    fully_shard(model, mesh=world)
    taken = peak_of(tracked(model, torch.optim.Adam(model.parameters()), tokens()))
    assert taken <= said <= 1.2 * taken


def test_a_unit_that_discards_holds_no_unit_of_fsdp(estimated: Estimated):
    budget = budgets(estimated, 0.8)[0]
    mlps = [f"{layer}.mlp" for layer in LAYERS]
    decisions, _, _ = sac_milp(estimated.graph, budget, ac_units=[*LAYERS, *mlps], fsdp_units=mlps)
    assert decisions
    assert set(decisions) <= set(mlps)


def test_of_nested_units_at_most_one_discards(estimated: Estimated):
    decisions, _, _ = sac_milp(estimated.graph, budgets(estimated, 0.02)[0])
    assert not any(ilp_utils.is_submodule(one, other) for one in decisions for other in decisions)


def many_layers(count: int) -> problem_module.Problem:
    """Each layer can discard as a whole, or its two halves can. Policies give back less and less for their time."""
    candidates, loads = [], []
    for layer in range(count):
        for part, size in (("", 2.0), (".attention", 0.9), (".mlp", 0.9)):
            steps = range(1, 21)
            policies = tuple(
                problem_module.Policy(
                    stored_bytes=int((20 - i) / 20 * size * GIB), stored_for_nothing_bytes=0, recompute_ms=size * i * i
                )
                for i in steps
            )
            gains = tuple(int(i / 20 * size * GIB) for i in steps)
            candidates.append(problem_module.CheckpointedModule(name=f"Net.layers.{layer}{part}", policies=policies, gains=gains))
        for waiting in (3 * layer, 3 * layer + 3):
            load = problem_module.Load(size_bytes=2 * (layer + 1) * GIB + waiting, held=tuple(range(waiting)))
            loads.append(load)
    return problem_module.Problem(candidates, loads)


def test_twenty_four_layers():
    """PyTorch's takes three minutes for as many, does not finish, and calls it solved."""
    problem = many_layers(24)
    found = problem_module.solve(problem, 30 * GIB, 180.0)
    assert found is not None
    assert found.is_best
    assert problem.peak(found.chosen) <= 30 * GIB
    assert len(found.chosen) >= 20


# -- what is told apart ----------------------------------------------------------------------------------------------------------


def stopped(monkeypatch: pytest.MonkeyPatch, *, has_plan: bool) -> None:
    """The solver stops when its time is over, with a plan or without."""
    import scipy.optimize

    real = scipy.optimize.milp

    def milp(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        return SimpleNamespace(x=found.x if has_plan else None, status=1, message="Time limit reached.")

    monkeypatch.setattr(scipy.optimize, "milp", milp)


def test_a_plan_that_was_not_proved_is_told_apart(
    estimated: Estimated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    budget = budgets(estimated, 0.4)[0]
    stopped(monkeypatch, has_plan=True)
    found = sac_milp(estimated.graph, budget)
    assert (found.status, found[2] > 0) == ("time limit", True)
    assert "ran out" in caplog.text


def test_no_plan_in_time_is_no_answer(estimated: Estimated, monkeypatch: pytest.MonkeyPatch):
    budget = budgets(estimated, 0.4)[0]
    stopped(monkeypatch, has_plan=False)
    with pytest.raises(SolverTimeoutError, match="in 7 s"):
        sac_milp(estimated.graph, budget, time_limit_s=7.0)


def test_an_unknown_unit(estimated: Estimated, theirs: Any):
    budget = budgets(estimated, 0.4)[0]
    with pytest.raises(ConfigError, match=r"did you mean Gpt\.layers\.0"):
        sac_milp(estimated.graph, budget, ac_units=["Gpt.layer.0"])
    with pytest.raises(ConfigError, match="fsdp_units"):
        sac_milp(estimated.graph, budget, fsdp_units=["Gpt.layers.9"])
    small = 0.7 * estimated.peak_bytes / GIB
    assert theirs.sac_milp(estimated.graph, small, ac_units=["Gpt.layer.0"])[2] == -1, FIXED


@pytest.mark.parametrize(("budget", "world_size"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_what_cannot_be_meant(estimated: Estimated, budget: float, world_size: int):
    with pytest.raises(ConfigError):
        sac_milp(estimated.graph, budget, world_size)


# -- models ------------------------------------------------------------------------------------------------------------------------


class Shared(nn.Module):
    """One block, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.out = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.block(self.block(x)))


class FrozenEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2))
        self.head = nn.Sequential(*blocks)  # registered first, and called last
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.encoder.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


@pytest.mark.parametrize("build", [Shared, FrozenEncoder])
def test_odd_models_have_plans(build: type[nn.Module]):
    found = estimate(build, lambda: torch.randn(4096, 32))
    assert tuple(sac_milp(found.graph, 1.0)) == ({}, 0.0, found.peak_bytes)
    assert sac_milp(found.graph, 0.97 * found.peak_bytes / GIB)[2] > 0


def without_moments(info: ModuleInfo) -> Any:
    return {"mod_order": info["mod_order"], "mod_stats": info["mod_stats"]}


def test_a_module_that_is_called_twice():
    found = estimate(Shared, lambda: torch.randn(4096, 32))
    assert found.info["mod_order"]["fw_pre_order"].count("Shared.block") == 2
    assert [node["fqn"] for node in found.graph.nodes].count("Shared.block") == 1
    with pytest.raises(AssertionError):
        torchs_ilp_utils.parse_module_info(without_moments(found.info))
    block = found.graph.name2node["Shared.block"]
    gelu_and_first = 2 * 4096 * 128 * 4  # what GELU takes and what it gives
    assert block["act_fw_per_module"] == 2 * gelu_and_first, "of both calls"


def test_modules_stand_in_the_order_of_forward():
    """PyTorch's stand as they are registered; what is inside what is then found only by luck."""
    found = estimate(FrozenEncoder, lambda: torch.randn(4096, 32))
    names = [node["fqn"] for node in found.graph.nodes]
    assert names[:2] == ["FrozenEncoder", "FrozenEncoder.encoder"]
    frozen = found.graph.name2node["FrozenEncoder.encoder"]
    assert (frozen["grad_per_module"], frozen["act_fw_per_module"]) == (0, 0)
    assert frozen["param_per_module"] == (32 * 64 + 64) * 4
    graph = torchs_ilp_utils.parse_module_info(without_moments(found.info))
    assert graph.nodes[1]["fqn"] == "FrozenEncoder.head", FIXED


def test_a_frozen_encoder_in_pytorchs_own():
    """Its trackers wait for gradients of what has none."""
    model, x = FrozenEncoder(), torch.randn(64, 32)
    with warnings.catch_warnings(action="ignore"), pytest.raises(RuntimeError, match="require grad"), TorchMemTracker():
        model(x).sum().backward()


def test_trackers_of_another_make_are_refused(estimated: Estimated):
    with pytest.raises(TypeError, match=r"memfit\.compat\.MemTracker, not a torch"):
        ilp_utils.aggregate_stats(nn.Linear(1, 1), TorchMemTracker(), None, None, torch.device("cpu"))  # type: ignore[arg-type]


def test_a_graph_that_is_made_by_hand_is_solved_without_moments(estimated: Estimated):
    graph = parse_module_info(without_moments(estimated.info))
    assert len(graph.moments) == len(graph.nodes)
    peak = sac_milp(graph, 1.0)[2]
    assert 0 < sac_milp(graph, 0.9 * peak / GIB)[2] <= 0.9 * peak


# -- small things ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "outer", "is_inside"),
    [
        ("Net.x", "Net", True),
        ("Net.x.y", "Net.x", True),
        ("MyNet.x", "Net", False),
        ("Net.xy", "Net.x", False),
        ("Net", "Net", False),
    ],
)
def test_names_are_compared_whole(inner: str, outer: str, is_inside: bool):
    assert ilp_utils.is_submodule(inner, outer) == is_inside
    assert ilp_utils.is_self_or_submodule(inner, outer) == (is_inside or inner == outer)
    if inner == "MyNet.x":
        assert torchs_ilp_utils.is_submodule(inner, outer), FIXED


def test_the_matrix_says_what_is_inside_what(estimated: Estimated):
    graph: Graph = estimated.graph
    names = [node["fqn"] for node in graph.nodes]
    inside = [[float(ilp_utils.is_self_or_submodule(one, other)) for one in names] for other in names]
    assert np.array_equal(graph.ad_matrix, inside)


def test_the_baseline_is_the_tracked_peak_without_the_optimizer(estimated: Estimated):
    peak, milliseconds = get_peak_memory_runtime_baseline(estimated.graph)
    state = max(moment["optimizer"] for moment in estimated.graph.moments if moment["phase"] == "backward")
    assert peak == estimated.peak_bytes - state
    root = estimated.graph.nodes[0]
    assert milliseconds == root["fw_runtime_per_module"] + root["bw_runtime_per_module"] > 0


def test_bytes_in_units():
    assert (display_bytes(3 * 2**19), display_bytes(2**30, "GiB"), display_bytes(5, "B")) == ("1.50 MiB", "1.00 GiB", "5.00 B")
    with pytest.raises(ConfigError, match="MB"):
        display_bytes(1, "MB")


POLICY_CASES = [
    (0, [1, 0, 0, 0, 1, 0, 0, 0]),
    (100, [1, 0, 0, 0, 1, 1, 0, 1]),
    (120, [1, 0, 0, 1, 1, 0, 0, 0]),
    (200, [1, 0, 1, 0, 1, 1, 0, 1]),
    (220, [1, 0, 0, 1, 1, 1, 0, 1]),
    (320, [1, 0, 1, 1, 1, 1, 0, 1]),
    (420, [1, 1, 1, 1, 1, 1, 0, 1]),
]


@pytest.mark.parametrize(("allowed", "expected"), POLICY_CASES)
def test_which_operators_are_kept(allowed: int, expected: list[int]):
    stats = SACStats(
        func_names=["copy_", "add", "div", "mm", "native_dropout", "linear", "t", "relu_"],
        runtimes=[5, 5, 8, 15, 15, 9, 1, 5],
        memory=[0, 100, 100, 120, 0, 100, 0, 0],
        view_like_ops=[6],
        rand_ops=[4],
        saved_autograd_ops=[],
        inplace_ops=[(0, 0), (7, 5)],
        force_store_random=False,
    )
    assert get_optimal_checkpointing_policy_per_module(stats, allowed / 420) == expected


def test_a_share_is_between_nothing_and_all():
    with pytest.raises(ValueError, match="between 0 and 1"):
        get_optimal_checkpointing_policy_per_module(SACStats([], [], [], [], [], [], [], force_store_random=False), 1.5)


def test_what_must_be_kept_and_is_too_much(caplog: pytest.LogCaptureFixture):
    stats = SACStats(["add_"], [1.0], [100], [], [], [], [(0, 0)], force_store_random=False)
    assert get_optimal_checkpointing_policy_per_module(stats, 0.5) == []
    assert "must be kept" in caplog.text


def test_swapping_the_import_is_enough():
    files = ("common_utils", "fake_collectives", "fsdp2_mem_tracker", "ilp_utils", "mem_tracker", "memory_tracker", "mod_tracker")
    for file in (*files, "runtime_estimator", "sac_estimator"):
        theirs, ours = (importlib.import_module(f"{package}.{file}") for package in ("torch.distributed._tools", "memfit.compat"))
        public = getattr(theirs, "__all__", [])
        assert [name for name in public if not hasattr(ours, name)] == []
    for name in vars(importlib.import_module("torch.distributed._tools")):
        assert name.startswith("_") or hasattr(importlib.import_module("memfit.compat"), name), name
    assert {"SACDecision", "get_optimal_checkpointing_policy_per_module", "sac_milp"} <= set(sac_ilp.__all__)


def test_a_module_is_put_in_the_place_of_those_inside_it_where_that_costs_the_same():
    """Whole blocks are what people checkpoint."""
    policy = problem_module.Policy(stored_bytes=0, stored_for_nothing_bytes=0, recompute_ms=1.0)
    dearer = problem_module.Policy(stored_bytes=0, stored_for_nothing_bytes=0, recompute_ms=1.04)
    inner = problem_module.CheckpointedModule(name="Net.block.mlp", policies=(policy,), gains=(GIB,))
    loads = [problem_module.Load(size_bytes=2 * GIB, held=(0, 1))]
    too_dear = problem_module.Policy(stored_bytes=0, stored_for_nothing_bytes=0, recompute_ms=1.1)
    for outer_policy, expected in ((dearer, {0: 0}), (too_dear, {1: 0})):
        outer = problem_module.CheckpointedModule(name="Net.block", policies=(outer_policy,), gains=(GIB,))
        found = problem_module.solve(problem_module.Problem([outer, inner], loads), GIB, 10.0)
        assert found is not None
        assert found.chosen == expected
