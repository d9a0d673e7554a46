"""A small model whose training is compiled one way or another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def training(prepare, num_rows: int = 4096, make_optimizer=None):
    """A model, ``prepare`` compiles it; gives its step."""

    def build():
        model = Model().cuda()
        optimizer = (make_optimizer or (lambda params: torch.optim.SGD(params, lr=0.1)))(model.parameters())
        run = prepare(model)
        run = model if run is None else run
        x = torch.randn(num_rows, 64, device="cuda")

        def step() -> None:
            run(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build
