"""The few lines by hand do what the plan does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from memfit.plan import Action, CheckpointingPolicy, OperatorChoice, UnitPolicy
from memfit.plan.handwritten import write_code

KEPT = (OperatorChoice(operator="aten.addmm.default", call=0), OperatorChoice(operator="aten.addmm.default", call=1))
POLICY = CheckpointingPolicy(
    groups=(UnitPolicy(units=("0",), choices=KEPT), UnitPolicy(units=("1",), choices=KEPT[:1]), UnitPolicy(units=("2",))),
    untouched=("3",),
)


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] = self.seen.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh()) for _ in range(4)))


def backward(model: nn.Module) -> tuple[int, int, list[torch.Tensor]]:
    """How many products and activations backward computes, and the gradients."""
    loss = model(torch.ones(2, 4)).sum()
    with Counting() as counting:
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return counting.seen.get("aten.addmm.default", 0), counting.seen.get("aten.gelu.default", 0), gradients


def test_the_code_computes_again_what_the_plan_does():
    model = make()
    exec(write_code(POLICY), {"model": model})
    by_hand, applied, plain = backward(model), backward(memfit.apply(make(), POLICY)), backward(make())
    assert by_hand[:2] == applied[:2] == (0 + 1 + 2, 3)
    assert plain[:2] == (0, 0)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(by_hand[2], applied[2], plain[2], strict=True))


def test_the_code_counts_the_batches_of_a_norm_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()))
    exec(write_code(CheckpointingPolicy(groups=(UnitPolicy(units=("0",)),))), {"model": model})
    model(torch.randn(3, 4)).sum().backward()
    assert model[0][1].num_batches_tracked == 1


@pytest.mark.parametrize("policy", [None, CheckpointingPolicy(untouched=("0",))])
def test_nothing_to_do_is_said(policy: CheckpointingPolicy | None):
    assert write_code(policy) == "# Nothing is computed again: train the model as it is.\n"


def test_what_the_code_leaves_out_is_said():
    moved = UnitPolicy(units=("0",), choices=(OperatorChoice(operator="aten.addmm.default", call=0, action=Action.OFFLOAD),))
    code = write_code(CheckpointingPolicy(groups=(moved,)))
    assert "offloads some of these outputs to the host; here they stay on the GPU" in code
