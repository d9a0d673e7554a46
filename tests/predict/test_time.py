"""How long the last step takes, and where that time goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memfit
from memfit.engines import find_engine
from memfit.hardware import find_gpu
from memfit.job import Recipe
from memfit.job.configuration import build_recipe
from memfit.ledger import Phase, RunInfo
from memfit.phantom.clock.operator_clock import OperatorClock
from memfit.phantom.target import DEFAULT_TORCH, Target
from memfit.predict.clock import EngineTime, TimedBuilder
from memfit.record.sources.operators.recorder import Recorder

WIDTH, TOKENS = 1024, 4096


class Model(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.embed = nn.Embedding(1000, WIDTH)
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.second = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return checkpoint(self.inside, x, use_reentrant=False) if self.again else self.inside(x)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def build(again: bool = False, scale: int = 1) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        model = Model(again).to("cuda", torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(0, 1000, (scale, TOKENS), device="cuda")

        def step() -> None:
            model(tokens).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


@pytest.fixture(scope="module")
def prediction() -> memfit.Prediction:
    return memfit.predict(build(scale=4), gpu="H200", steps=2)


def test_a_step_has_a_time_and_it_is_not_faster_than_physics(prediction: memfit.Prediction) -> None:
    chip = find_gpu("H200")
    flops = 3 * 2 * 2 * 4 * TOKENS * WIDTH * 4 * WIDTH
    assert prediction.time is not None
    assert prediction.time.flops()["bf16"] == flops
    assert prediction.step_seconds is not None
    assert prediction.step_seconds > flops / chip.bf16_flops
    assert prediction.mfu == pytest.approx(flops / chip.bf16_flops / prediction.step_seconds)
    assert prediction.tokens_per_second == pytest.approx(4 * TOKENS / prediction.step_seconds)


def test_the_parts_of_a_step_add_up(prediction: memfit.Prediction) -> None:
    parts = prediction.time_breakdown
    assert parts is not None
    assert parts.total == prediction.step_seconds
    assert parts.total == pytest.approx(parts.compute + parts.exposed_communication + parts.idle)
    assert parts.recompute == parts.communication == 0.0
    assert 0 < parts.by_module["first"] < parts.compute
    assert sum(parts.by_operator.values()) == pytest.approx(parts.compute)


def test_predicting_twice_gives_the_same_time(prediction: memfit.Prediction) -> None:
    assert memfit.predict(build(scale=4), gpu="H200", steps=2).step_seconds == prediction.step_seconds


def test_what_is_computed_again_is_told_and_is_no_useful_work(prediction: memfit.Prediction) -> None:
    again = memfit.predict(build(again=True, scale=4), gpu="H200", steps=2)
    assert again.time_breakdown is not None
    assert 0.05 * again.time_breakdown.compute < again.time_breakdown.recompute < 0.3 * again.time_breakdown.compute
    assert again.step_seconds is not None
    assert prediction.step_seconds is not None
    assert again.step_seconds > 1.05 * prediction.step_seconds
    assert again.mfu is not None
    assert prediction.mfu is not None
    assert again.mfu < prediction.mfu


def test_a_slower_gpu_takes_longer_and_says_that_it_was_not_timed(prediction: memfit.Prediction) -> None:
    other = memfit.predict(build(scale=4), gpu="A100-80GB", steps=2)
    assert other.step_seconds is not None
    assert prediction.step_seconds is not None
    assert other.step_seconds > 1.5 * prediction.step_seconds
    assert prediction.time is not None
    assert prediction.time.basis == "measured"
    assert other.time is not None
    assert other.time.basis != "measured"


def test_the_ledger_runs_on_the_predicted_clock(prediction: memfit.Prediction) -> None:
    times = prediction.ledger.events.time_ns
    assert (times[1:] >= times[:-1]).all()
    starts = times[prediction.ledger.step_starts]
    assert prediction.time is not None
    assert starts[1] - starts[0] == pytest.approx(1e9 * prediction.time.step_seconds(0), rel=1e-6)


def test_a_task_of_fsdp_that_finds_nothing_to_do_costs_the_host_little() -> None:
    clock = OperatorClock.of(Target.parse("H200", DEFAULT_TORCH))
    ledger = TimedBuilder(RunInfo(), clock)
    device, operator = ledger.device("cuda:0"), ledger.string("all_gather")
    time, engine = EngineTime(ledger, Recorder(ledger)), find_engine("fsdp2")
    task = engine.tasks[Phase.PRE_FORWARD]

    def spent_on(does_something: bool) -> float:
        before = clock.timeline.host
        depth = time.enter_task(engine, Phase.PRE_FORWARD, ())
        assert depth is not None
        if does_something:
            ledger.alloc(512, device, operator)
        time.exit_task(depth)
        return clock.timeline.host - before

    assert spent_on(does_something=False) == pytest.approx(task.idle_seconds)
    assert spent_on(does_something=True) == pytest.approx(task.seconds)


# -- operators that no rule prices -----------------------------------------------------------------------------------------------


def test_operators_that_no_rule_prices_are_named_with_their_share() -> None:
    def build() -> Callable[[], Any]:
        x = torch.ones(512, 512, device="cuda")

        def step() -> None:
            torch.linalg.svd(x)
            torch.fft.fft(x)
            torch.fft.fft(x)
            (x + x).relu_()

        return step

    said = [each for each in memfit.predict(build, steps=1).assumptions if "no rule prices" in each]
    assert len(said) == 1
    assert "_fft_r2c, _linalg_svd" in said[0]
    assert "3 calls" in said[0]
    assert "relu" not in said[0]


@pytest.mark.parametrize("world_size", [1, 8])
def test_a_language_model_has_a_price_for_everything(world_size: int) -> None:
    recipe = Recipe(model="gpt2", batch=1, seq=128)
    prediction = memfit.predict(partial(build_recipe, recipe), steps=1, world_size=world_size)
    assert not [each for each in prediction.assumptions if "no rule prices" in each]
