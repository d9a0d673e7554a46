"""What Python takes between operators: calls of modules, computing again, policies, distributed tensors, looking at numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memfit
from memfit.hardware import find_gpu
from memfit.timing.basis import rates_of
from memfit.timing.host import HostPace
from memfit.timing.rates import MICRO

COUNT = 50
RATES = rates_of(find_gpu("H200")).host
PACE = HostPace(RATES)


def host_seconds(build: Callable[[], Callable[[], Any]], **options: Any) -> float:
    parts = memfit.predict(build, steps=1, interconnect="none", **options).time_breakdown
    assert parts is not None
    return parts.host


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Chain(nn.Module):
    """Functions one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(COUNT):
            x = torch.sin(x)
        return x


def test_modules_of_torch_cost_less_than_those_written_in_python() -> None:
    def build(kind: type[nn.Module]) -> Callable[[], Any]:
        model, x = nn.Sequential(*(kind() for _ in range(COUNT))), torch.ones(8, device="cuda")
        return lambda: model(x)

    more = host_seconds(lambda: build(Same)) - host_seconds(lambda: build(nn.Identity))
    assert more == pytest.approx(COUNT * (PACE.own_module - PACE.module))


def chained(around: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
    model, x = Chain(), torch.ones(8, device="cuda", requires_grad=True)

    def step() -> None:
        around(model, x).sum().backward()

    return step


def computed_again(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = checkpoint(model, x, use_reentrant=False)
    return found


def test_what_is_computed_again_costs_what_forward_does() -> None:
    """Not what nodes of backward do, in whose midst it runs."""
    more = host_seconds(lambda: chained(computed_again)) - host_seconds(lambda: chained(lambda model, x: model(x)))
    forward = COUNT * (RATES.usual + RATES.recorded) * MICRO * RATES.in_forward
    machinery = PACE.checkpoint + PACE.recompute
    saved = COUNT * (PACE.view + PACE.node)  # a saved tensor is detached when it is made, and again when backward asks for it
    assert forward + machinery <= more <= forward + machinery + saved


def test_a_policy_is_paid_for_at_every_operator() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts(lambda *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE)

    def with_policy(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(model, x, use_reentrant=False, context_fn=contexts)
        return found

    more = host_seconds(lambda: chained(with_policy)) - host_seconds(lambda: chained(computed_again))
    # In forward and when it is computed again; the modes see tensors being detached too.
    assert 2 * COUNT * PACE.policy_operator <= more <= 5 * COUNT * PACE.policy_operator


def test_a_mask_that_chooses_makes_the_host_wait() -> None:
    def step(chooses: bool) -> None:
        a = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
        torch.mm(a, a)
        x = torch.ones(8, device="cuda")
        if chooses:
            x[x > 0]
        for _ in range(100):
            x = x + 1

    hidden, shown = (memfit.predict(lambda c=c: lambda: step(c), steps=1).step_seconds for c in (False, True))
    assert hidden is not None
    assert shown is not None
    assert shown > hidden + 300e-6


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_tensor_is_laid_out_anew_in_python() -> None:
    def build(times: int) -> Callable[[], Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        dist.init_process_group("nccl")
        x = distribute_tensor(torch.randn(64, 64, device="cuda"), init_device_mesh("cuda", (2,)), [Shard(0)])

        def step() -> None:
            for _ in range(times):
                x.redistribute(placements=[Replicate()])

        return step

    few, many = (host_seconds(lambda t=t: build(t), world_size=2) for t in (1, 11))
    assert many - few > 10 * PACE.redistributed[0]
