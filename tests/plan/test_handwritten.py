"""The few lines by hand do what the plan does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from memfit.fsdp import MixedPrecision, shard
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


# -- what a search found ----------------------------------------------------------------------------------------------------------

RECIPE = {"model": "llama3-8b", "precision": "bf16-mixed", "optimizer": "adamw", "batch": 1, "seq": 64, "checkpointing": "none"}


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def peak_of(prepare: Callable[[nn.Module], nn.Module], world_size: int) -> int:
    def build():
        dist.init_process_group("nccl")
        model = prepare(Layered().cuda())
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            model(torch.ones(512, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return memfit.predict(build, world_size=world_size, steps=2).verdict.peak_allocated


def by_code(recipe: dict[str, Any], world_size: int) -> Callable[[nn.Module], nn.Module]:
    def prepare(model: nn.Module) -> nn.Module:
        names = {"model": model}
        exec(write_code(None, RECIPE | recipe, world_size), names)
        return names["model"]

    return prepare


@pytest.mark.parametrize(
    ("recipe", "world_size"),
    [
        ({"strategy": "shard_grad_op", "engine": "fsdp2", "checkpointing": "full"}, 8),
        ({"strategy": "full_shard", "engine": "fsdp2", "checkpointing": "selective"}, 4),
        ({"strategy": "hybrid_shard", "engine": "fsdp2"}, 16),
        ({"strategy": "full_shard", "engine": "fsdp1"}, 8),
        ({"strategy": "no_shard", "engine": "ddp", "precision": "fp32"}, 8),
    ],
    ids=str,
)
def test_the_code_of_a_searched_plan_needs_what_its_recipe_needs(recipe: dict[str, Any], world_size: int):
    precision = None if recipe.get("precision") == "fp32" else MixedPrecision(torch.bfloat16, torch.float32)

    def by_words(model: nn.Module) -> nn.Module:
        how = recipe.get("checkpointing")
        return shard(
            model, recipe["strategy"], engine=recipe["engine"], units=nn.Sequential, mixed_precision=precision, checkpointing=how
        )

    assert peak_of(by_code(recipe, world_size), world_size) == peak_of(by_words, world_size)


def test_the_code_of_a_searched_plan_compiles_and_names_what_it_leaves_out():
    recipe = RECIPE | {"strategy": "full_shard", "engine": "fsdp2", "tp": 2, "microbatches": 4, "compile": "blocks"}
    code = write_code(None, recipe | {"precision": "bf16", "float8": "rowwise", "offload": "params"}, 16)
    for words in (
        "block.compile()",
        'init_device_mesh("cuda", (8,))',
        "CPUOffloadPolicy()",
        "tp=2, schedule=none: NOT written here",
        "model.to(torch.bfloat16)",
        'from_recipe_name("rowwise")',
        "in 4 microbatches: forward and backward of each before optimizer.step()",
        "torch.optim.AdamW(model.parameters(), lr=...)",
    ):
        assert words in code, words
    compile(code, "plan", "exec")


def test_the_arguments_of_a_function_are_named():
    assert write_code(None, {"width": 64}).startswith("# Call your function with width=64.\n# Nothing is computed again")


@pytest.mark.parametrize("word", ["hf", "prefetch", "batch", "strategy", "tp", "mesh"])
def test_a_hostile_recipe_writes_comments_at_most(word: str):
    recipe = RECIPE | {"strategy": "full_shard", word: "x\nimport os\nos.system('true')\n"}
    assert not [line for line in write_code(None, recipe, 8).splitlines() if "os" in line.split("#")[0].split()]
