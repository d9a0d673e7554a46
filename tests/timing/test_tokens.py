"""Tokens are counted once, however many embeddings look them up."""

from __future__ import annotations

import torch
from torch import nn

import memfit


class WithPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1000, 64), nn.Embedding(1000, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device="cuda")[None])


def test_embeddings_that_look_up_equally_much_count_once():
    def build():
        model = WithPositions().cuda()
        optimizer = torch.optim.SGD(model.parameters())

        def step():
            for _ in range(2):  # gradients of two batches are added up
                model(torch.randint(0, 1000, (1, 128), device="cuda")).sum().backward()
            optimizer.step()

        return step

    prediction = memfit.predict(build, gpu="H200", steps=2)
    assert round(prediction.tokens_per_second * prediction.step_seconds) == 256
