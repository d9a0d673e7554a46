"""An engine that exists in this file alone: registering it is all that memfit needs to record it and to price it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import memfit
from memfit.engines import ENGINES, Engine, HostTask, Learner, Reporter, find_engine, registered
from memfit.engines.engine import Hook, WrapConfig
from memfit.errors import ConfigError
from memfit.fsdp import ShardConfig, shard
from memfit.ledger import Category, Phase

SCRATCH = 3 * 2**20
SECONDS = 2e-3
MODULE = "toy_engine_of_tests"


class Wrapped(nn.Module):
    """Fetches something before every forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.toy_inner = inner

    def fetch(self) -> torch.Tensor:
        return torch.empty(SCRATCH, dtype=torch.uint8, device="cuda")

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.fetched = self.fetch()
        return self.toy_inner(given)


class ToyEngine(Engine):
    name = "toy"
    title = "Toy"
    tasks = {Phase.PRE_FORWARD: HostTask(seconds=SECONDS)}
    categories = (Category.UNSHARDED_PARAMETER,)
    wrapper_level = "toy_inner"

    def hooks(self) -> Mapping[str, Hook]:
        return {MODULE: self._patch}

    def _patch(self, module: Any, patches: Any, reporter: Reporter) -> None:
        def around(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def fetch_in_a_task(wrapped: Any) -> Any:
                fetched = []

                def learn(learner: Learner) -> None:
                    learner.learn_tensor(fetched[0], Category.UNSHARDED_PARAMETER, wrapped, "fetched")

                return reporter.in_task(
                    self, Phase.PRE_FORWARD, (wrapped,), lambda: fetched.append(fetch(wrapped)) or fetched[0], learn
                )

            return fetch_in_a_task

        patches.because("what the toy fetches").wrap(module.Wrapped, "fetch", around)

    def refused(self, config: WrapConfig) -> Iterator[str]:
        if config.cpu_offload.offload_params:
            yield "the toy offloads nothing: use engine='fsdp2'"

    def wrap(self, config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        return Wrapped(model)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyEngine]:
    module = ModuleType(MODULE)
    vars(module)["Wrapped"] = Wrapped
    monkeypatch.setitem(sys.modules, MODULE, module)
    engine = ToyEngine()
    with registered(engine):
        yield engine


def build() -> Callable[[], None]:
    torch.distributed.init_process_group("nccl")
    model = shard(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda(), "no_shard", engine="toy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_its_phase_and_its_category_are_in_a_predicted_ledger(toy: ToyEngine):
    ledger = memfit.predict(build, world_size=2, steps=1).ledger
    (scope,) = (ledger.scopes.phase == Phase.PRE_FORWARD).nonzero()[0]
    (block,) = (ledger.blocks.scope == scope).nonzero()[0]
    assert Category(ledger.categories[block]) is Category.UNSHARDED_PARAMETER
    assert ledger.events.size[ledger.birth[block]] == SCRATCH
    assert "0.weight" in ledger.strings  # the wrapper's own level is in no name
    assert not any("toy_inner" in text for text in ledger.strings)


def test_the_host_pays_for_its_task(toy: ToyEngine, monkeypatch: pytest.MonkeyPatch):
    with_cost = memfit.predict(build, world_size=2, steps=2)
    monkeypatch.setattr(ToyEngine, "tasks", {Phase.PRE_FORWARD: HostTask(seconds=0.0)})
    without = memfit.predict(build, world_size=2, steps=2)
    assert with_cost.step_seconds is not None
    assert without.step_seconds is not None
    assert with_cost.step_seconds - without.step_seconds == pytest.approx(SECONDS, rel=0.05)


def test_it_refuses_what_it_cannot_do(toy: ToyEngine):
    with pytest.raises(ConfigError, match="the toy offloads nothing"):
        ShardConfig(strategy="no_shard", engine="toy", cpu_offload=torch.distributed.fsdp.CPUOffload(offload_params=True))  # type: ignore[arg-type]


def test_outside_it_is_not_known():
    assert "toy" not in ENGINES
    with pytest.raises(ConfigError, match="'toy' is not an engine: use one of 'fsdp2', 'fsdp1', 'ddp'"):
        find_engine("toy")
    with pytest.raises(ConfigError, match="use one of 'fsdp2', 'fsdp1', 'ddp'"):
        ShardConfig(engine="toy")  # type: ignore[arg-type]


def test_a_name_is_taken_once(toy: ToyEngine):
    with pytest.raises(ConfigError, match="there is an engine 'toy' already"), registered(ToyEngine()):
        pass


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_every_engine_has_its_name_and_prices_its_phases(engine: Engine):
    assert ENGINES[engine.name] is engine
    assert all(task.seconds > 0 for task in engine.tasks.values())
