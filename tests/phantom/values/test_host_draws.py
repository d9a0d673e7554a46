"""What is drawn from the host's generator in the world is what a real run draws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

from memfit.phantom.values import host_draws

WAYS: dict[str, Callable[[], object]] = {
    "a layer": lambda: nn.Linear(100, 100),
    "a layer that is no multiple of anything": lambda: nn.Linear(257, 301),
    "normal numbers, the last group not whole": lambda: nn.init.normal_(nn.Parameter(torch.empty(2**16 + 21))),
    "few normal numbers": lambda: nn.init.normal_(nn.Parameter(torch.empty(5))),
    "an embedding": lambda: nn.Embedding(1000, 33),
    "orthogonal": lambda: nn.init.orthogonal_(nn.Parameter(torch.empty(64, 64))),
    "half precision": lambda: nn.Linear(100, 100, dtype=torch.bfloat16),
    "double precision": lambda: nn.Linear(100, 100, dtype=torch.float64),
    "a large tensor of the host": lambda: torch.randn(2**20 + 3),
    "a generator of its own": lambda: nn.init.uniform_(nn.Parameter(torch.empty(99)), generator=torch.Generator().manual_seed(3)),
    "the GPU": lambda: nn.Linear(10, 10, device="cuda" if torch.cuda.is_available() else "meta"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_drawn_next_is_what_a_real_run_draws(way: str):
    torch.manual_seed(7)
    WAYS[way]()
    real = torch.randperm(1000).tolist()
    torch.manual_seed(7)
    with phantom():
        WAYS[way]()
        assert torch.randperm(1000).tolist() == real


def test_a_model_too_large_to_draw_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_draws, "MOST_DRAWS", 5000)
    with phantom() as world:
        torch.manual_seed(7)
        nn.Linear(50, 50)
        assert not any("random numbers" in sentence for sentence in world.assumptions.sentences())
        nn.Linear(50, 50)
        assert any("random numbers" in sentence for sentence in world.assumptions.sentences())
