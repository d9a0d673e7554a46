"""Plans for small models on a phantom GPU: they fit, they are faster than what people do by hand, and they are what runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memfit
from memfit.errors import ConfigError, InfeasibleError, UnknownUnitError
from memfit.job import PredictOptions
from memfit.plan import Action, CheckpointingPolicy, OperatorChoice, Plan, UnitPolicy
from memfit.plan.applying.kept_outputs import OPERATOR_SECONDS
from memfit.plan.checkpointing import plan_checkpointing
from memfit.plan.checkpointing.api import best_of
from memfit.plan.checkpointing.runs import FunctionRun
from memfit.plan.checkpointing.trials import Trials
from memfit.plan.checkpointing.units import UnitKind, UnitRecorder

DIM, TOKENS = 512, 16384
ADDMM = "aten.addmm.default"


class Block(nn.Module):
    def __init__(self, hidden: int = 4 * DIM) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, hidden), nn.Linear(hidden, DIM)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, wide: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*(Block() for _ in range(4)), *(Block(8 * DIM) for _ in range(wide))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


def building(make: Callable[[], nn.Module] = Model, prepare: Callable[[nn.Module], Any] = lambda model: None) -> Callable[[], Any]:
    def build() -> Any:
        with torch.device("cuda"):
            model = make().to(torch.bfloat16)
        prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        batch = torch.randn(TOKENS, DIM, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def plan_for(**asked: Any) -> Plan:
    return plan_checkpointing(building(), steps=2, **asked)


def recorded(build: Callable[[], Any]) -> list[UnitKind]:
    recorder = UnitRecorder(memfit.predict(build, steps=1).target.gpu, None)
    return list(FunctionRun(build, PredictOptions()).record(recorder).kinds)


def test_equal_layers_are_one_kind_and_their_forward_is_written_down():
    kinds = recorded(building(lambda: Model(wide=2)))
    assert [kind.names for kind in kinds] == [("layers.0", "layers.1", "layers.2", "layers.3"), ("layers.4", "layers.5")]
    one = kinds[0].one
    calls = {(call.operator, call.call): call for call in one.calls}
    up, down, dropout = calls["aten.addmm.default", 0], calls["aten.addmm.default", 1], calls["aten.native_dropout.default", 0]
    assert (up.size_bytes, down.size_bytes) == (2 * TOKENS * 4 * DIM, 2 * TOKENS * DIM)
    assert dropout.is_random
    assert dropout.size_bytes == 2 * TOKENS * DIM + TOKENS * DIM
    assert up.is_run_again
    # What autograd keeps: norm (output, mean, rstd), both sides of gelu, and the mask.
    assert one.saved_bytes == 2 * TOKENS * DIM + 2 * 4 * TOKENS + 2 * 2 * TOKENS * 4 * DIM + TOKENS * DIM


class OwnNorm(nn.BatchNorm1d):
    """Its forward is its own: nobody knows what it does with its statistics."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Counter(nn.Module):
    """Normalises by a batch, activates in place, and adds to its input in place where it is asked to."""

    def __init__(self, spoils: bool, norm: type[nn.BatchNorm1d]) -> None:
        super().__init__()
        self.spoils, self.linear, self.norm = spoils, nn.Linear(DIM, DIM), norm(DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spoils:
            x.add_(1.0)
        return x + F.relu_(self.norm(self.linear(x)))


class Counters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(
            [Counter(False, OwnNorm), Counter(False, OwnNorm), Counter(True, OwnNorm), Counter(False, nn.BatchNorm1d)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


def test_statistics_chains_and_spoiled_inputs_are_seen():
    kinds = recorded(building(Counters))
    plain, spoiled, spared = (kind.one for kind in kinds)
    assert kinds[0].names == ("layers.0", "layers.1")
    by_operator = {call.operator: call for call in plain.calls}
    norm = next(call for operator, call in by_operator.items() if "batch_norm" in operator)
    relu, counter = by_operator["aten.relu_.default"], by_operator["aten.add_.Tensor"]
    assert norm.must_keep
    assert counter.must_keep
    assert relu.base == plain.calls.index(norm)
    assert not plain.refusal
    assert spoiled.refusal == "it changes its own input with aten.add_.Tensor"
    # Torch's own norms count into spare tensors when they are computed again.
    assert [call.operator for call in spared.calls] == [call.operator for call in plain.calls]
    assert not any(call.must_keep for call in spared.calls)


@pytest.fixture(scope="module")
def ends() -> tuple[memfit.Prediction, memfit.Prediction]:
    """As it is, and with all layers computed again."""
    full = CheckpointingPolicy(groups=(UnitPolicy(units=tuple(f"layers.{number}" for number in range(4))),))
    return memfit.predict(building(), steps=2), memfit.predict(building(prepare=lambda model: memfit.apply(model, full)), steps=2)


def test_a_plan_fits_is_faster_than_full_checkpointing_and_is_what_runs(ends: Any):
    untouched, full = ends
    budget = int(full.smallest_fit + 0.5 * (untouched.smallest_fit - full.smallest_fit))
    plan = plan_for(budget=budget)
    assert plan.smallest_fit <= 0.98 * budget
    assert untouched.step_seconds < plan.step_seconds < full.step_seconds
    assert plan.figures.recompute_seconds > 0
    # What a user gets who applies it: the same to the byte.
    again = memfit.predict(building(prepare=lambda model: memfit.apply(model, Plan.from_json(plan.to_json()))), steps=2)
    assert again.smallest_fit == plan.smallest_fit
    assert again.step_seconds == pytest.approx(plan.step_seconds)
    assert again.peak_allocated == plan.figures.peak_allocated_bytes


@pytest.mark.parametrize(("seconds_on_a_slow_host", "is_chosen"), [(1.9, True), (2.1, False)])
def test_operators_are_chosen_only_where_that_pays_on_a_slow_host_too(seconds_on_a_slow_host: float, is_chosen: bool):
    trials, whole, chosen = two_ways(waits_for_its_host=False, seconds_on_a_slow_host=seconds_on_a_slow_host)
    assert best_of(trials) == (chosen if is_chosen else whole, [])


def test_where_the_gpu_waits_for_its_host_units_are_computed_again_as_a_whole():
    trials, whole, _ = two_ways(waits_for_its_host=True, seconds_on_a_slow_host=1.6)
    best, notes = best_of(trials)
    assert best is whole
    assert "good to a fifth" in notes[0]


@pytest.mark.parametrize(("seconds", "is_taken"), [(1.514, True), (1.516, False)])
def test_a_tie_goes_to_what_people_write_by_hand(seconds: float, is_taken: bool):
    trials, whole, chosen = two_ways(waits_for_its_host=False, seconds_on_a_slow_host=1.5)
    whole.seconds = seconds
    assert best_of(trials, ["whole"])[0] is (whole if is_taken else chosen)


def two_ways(*, waits_for_its_host: bool, seconds_on_a_slow_host: float) -> tuple[Any, Any, Any]:
    """Trials with a policy that computes units again as a whole, and a faster one that chooses operators."""
    common = {"completes": True, "fits": True, "need": 1, "waits_for_its_host": waits_for_its_host}
    whole = SimpleNamespace(seconds=2.0, chooses_operators=False, policy="whole", **common)
    chosen = SimpleNamespace(seconds=1.5, chooses_operators=True, policy="chosen", **common)
    trials = SimpleNamespace(
        all=[whole, chosen], seconds_on_a_slow_host=lambda trial: seconds_on_a_slow_host, with_every_step=lambda trial: trial
    )
    return trials, whole, chosen


def test_a_slow_host_takes_longer_where_operators_are_chosen():
    kept = UnitPolicy(units=tuple(f"layers.{number}" for number in range(4)), choices=(OperatorChoice(operator=ADDMM, call=0),))
    trials = Trials(FunctionRun(building(), PredictOptions(steps=2)), 2**34, 0.0)
    trial = trials.run(CheckpointingPolicy(groups=(kept,)))
    # Norm, two transposed weights, two products, gelu, dropout and the sum, forward and again, on a host that is the slow one.
    assert trials.seconds_on_a_slow_host(trial) - trial.seconds >= 4 * 2 * 7 * OPERATOR_SECONDS


def test_what_fits_as_it_is_stays_as_it_is(ends: Any):
    plan = plan_for(budget=2 * int(ends[0].smallest_fit))
    assert plan.checkpointing is None
    assert plan.step_seconds == pytest.approx(ends[0].step_seconds)
    assert plan.code() == "# Nothing is computed again: train the model as it is.\n"


def test_what_cannot_fit_says_the_least_that_would(ends: Any):
    with pytest.raises(InfeasibleError, match="Use a smaller batch or shorter sequences") as raised:
        plan_for(budget=int(0.8 * ends[1].smallest_fit))
    assert raised.value.binding == "backward"
    least = raised.value.least_bytes
    assert plan_for(budget=least, max_trials=0).smallest_fit <= least


def test_states_that_are_too_much_alone_are_said_to_be():
    with pytest.raises(InfeasibleError, match="Shard them over more GPUs") as raised:
        plan_for(budget="16MiB")
    assert raised.value.binding == "states"


def test_one_layer_may_be_named_and_a_wrong_name_is_told(ends: Any):
    budget = int(0.97 * ends[0].smallest_fit)
    plan = plan_for(budget=budget, units=["layers.1"], margin=0.0)
    assert plan.checkpointing is not None
    assert (*plan.checkpointing.units, *plan.checkpointing.untouched) == ("layers.1",)
    with pytest.raises(UnknownUnitError, match=r"the model has no module layers\.7"):
        plan_for(budget=budget, units=["layers.7"])
    with pytest.raises(ConfigError, match=r"layers\.1\.up is inside another one"):
        plan_for(budget=budget, units=["layers.1", "layers.1.up"])


def test_some_layers_may_be_named_and_the_plan_is_for_models_of_that_depth(ends: Any, tmp_path: Path):
    budget = int(0.95 * ends[0].smallest_fit)
    plan = plan_for(budget=budget, units=["layers.0", "layers.1", "layers.2"], margin=0.0)
    assert plan.checkpointing is not None
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    for each in (plan, Plan.load(tmp_path / "plan.json")):
        assert memfit.apply(Model(), each) is not None
        with pytest.raises(ConfigError, match="with 4 modules in layers, and this one has 6 there"):
            memfit.apply(Model(wide=2), each)


def test_without_time_the_plan_is_what_people_write_by_hand(ends: Any):
    plan = plan_for(budget=int(0.97 * ends[0].smallest_fit), time_limit=0.0)
    assert plan.checkpointing is not None
    assert plan.checkpointing.units in (("layers.0", "layers.2"), ("layers.0", "layers.3"))  # every second or third of four
    assert any("the time was over" in sentence for sentence in plan.assumptions)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("40GX", "write it like 38GiB"),
        ("0GiB", "leaves nothing to the allocator"),
        ("1TiB", "more than the allocator can get of a H200"),
    ],
)
def test_a_bad_budget_is_told_before_anything_runs(budget: str, said: str):
    def build() -> Any:
        raise AssertionError("it ran")

    with pytest.raises(ConfigError, match=said):
        plan_checkpointing(build, budget=budget)


def test_what_is_offloaded_waits_on_the_host_and_comes_back():
    def predicted(action: Action) -> memfit.Prediction:
        up = OperatorChoice(operator="aten.addmm.default", call=0, action=action)
        layers = UnitPolicy(units=tuple(f"layers.{number}" for number in range(4)), choices=(up,))
        policy = CheckpointingPolicy(groups=(layers,))
        return memfit.predict(building(prepare=lambda model: memfit.apply(model, policy)), steps=2)

    kept, moved = predicted(Action.KEEP), predicted(Action.OFFLOAD)
    # Of four layers, that which goes backward and the one before it are on the GPU.
    assert moved.peak_allocated <= kept.peak_allocated - 2 * (2 * TOKENS * 4 * DIM)
    copies = moved.time_breakdown.by_operator["copy_"] - kept.time_breakdown.by_operator.get("copy_", 0.0)
    assert copies == pytest.approx(8 * 2 * TOKENS * 4 * DIM / 55.5e9, rel=0.05)


class Remembering(Block):
    """Each call sees what those before it left, as a cache of keys and values does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.detach())
        return x + torch.cat(self.seen).mul(super().forward(x).mean()).square().mean()


def test_a_layer_that_remembers_is_refused_with_what_to_do():
    class Forgetful(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Remembering() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                layer.seen.clear()
            return super().forward(x)

    with pytest.raises(ConfigError, match="use_cache=False"):
        plan_checkpointing(building(Forgetful), budget="100MiB", steps=2)
