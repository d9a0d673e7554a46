"""Losses as CUDA runs them."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit


def test_a_mean_loss_holds_the_memory_of_all_losses():
    def build():
        x, y = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
        kept = []
        return lambda: kept.append(nn.functional.mse_loss(x, y))

    after = memfit.predict(build, steps=2).steps
    assert after[1].peak_allocated - after[0].peak_allocated == 4 * 2**20


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ctc_loss_runs_forward_and_backward(device):
    with phantom():
        log_probs = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
        targets = torch.ones(4, 10, dtype=torch.int64, device="cuda")
        lengths = torch.full((4,), 50, device=device), torch.full((4,), 10, device=device)
        loss = nn.functional.ctc_loss(log_probs, targets, *lengths)
        loss.backward()
        assert (loss.shape, log_probs.grad.shape) == ((), log_probs.shape)
