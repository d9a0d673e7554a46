"""A training step seen by all three estimators, as a planner wants it, on tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memfit.compat import MemTracker, RuntimeEstimator, SACEstimator
from memfit.compat.ilp_utils import Graph, ModuleInfo, aggregate_stats, parse_module_info

CPU = torch.device("cpu")
MODE = "operator-level-cost-model"


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(dim), Attention(dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, num_layers: int, dim: int, vocabulary: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(num_layers))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@dataclass(frozen=True, kw_only=True)
class Estimated:
    info: ModuleInfo
    graph: Graph
    sac: SACEstimator
    peak_bytes: int


def estimate(build: Callable[[], nn.Module], batch: Callable[[], torch.Tensor]) -> Estimated:
    """All that a planner is told of a model that is trained with Adam."""
    with FakeTensorMode():
        model, tokens = build(), batch()
        optimizer = torch.optim.Adam(parameter for parameter in model.parameters() if parameter.requires_grad)
        tracker = tracked(model, optimizer, tokens)
        runtime, sac = RuntimeEstimator(), SACEstimator()
        with runtime(MODE):
            model(tokens).sum().backward()
        with sac(MODE):
            model(tokens).sum()
        info = aggregate_stats(model, tracker, runtime, sac, CPU)
    return Estimated(info=info, graph=parse_module_info(info), sac=sac, peak_bytes=peak_of(tracker))


def tracked(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> MemTracker:
    """The second of two steps: in the first, the optimizer has no state."""
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        for is_first in (True, False):
            model(tokens).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if is_first:
                tracker.reset_mod_stats()
    return tracker


def peak_of(tracker: MemTracker) -> int:
    return tracker.get_tracker_snapshot("peak")[CPU]["Total"]
