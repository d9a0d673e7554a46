"""A small training, tracked or not, for the attacks on the recorder."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.torch_compat.dispatch import modes_of_this_thread
from memfit.torch_compat.patches import active_patches


class Model(nn.Module):
    """A little of everything that the recorder follows: branches, recomputation, a buffer, tied weights, sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x + self.blocks[0](x)
        x = x + checkpoint(self.blocks[1], x, use_reentrant=False)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def make() -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.AdamW(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[torch.Tensor]:
    """Gives all that the training computed."""
    seen = []
    for step in range(steps):
        loss = model((torch.arange(6) + step) % 20).logsumexp(-1).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scratch = torch.empty(4).untyped_storage()
        scratch.resize_(64)
        seen.append(loss.detach())
    return seen + [parameter.detach().clone() for parameter in model.parameters()]


def is_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def left_behind() -> str:
    """What a recorder has left in torch, empty if nothing."""
    if modes_of_this_thread():
        return f"the modes {modes_of_this_thread()} are left"
    if active_patches():
        return f"{len(active_patches())} patches are left, of {active_patches()[0].place} for one"
    optimizers = sys.modules["torch.optim.optimizer"]
    if optimizers._global_optimizer_pre_hooks or optimizers._global_optimizer_post_hooks:
        return "hooks of optimizers are left"
    return ""
