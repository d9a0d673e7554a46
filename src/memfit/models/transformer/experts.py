"""An MLP of many experts, a few of them for each token.

The tokens are sorted by expert and all experts compute in one grouped matrix product, as torchtitan and transformers do. The sizes
do not depend on which expert a token goes to.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.models.config import ModelConfig


class Experts(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.dim, config.num_experts, bias=False)
        self.gate_and_up = nn.Parameter(torch.empty(config.num_experts, config.dim, 2 * config.hidden))
        self.down = nn.Parameter(torch.empty(config.num_experts, config.hidden, config.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.gate_and_up, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens).float().softmax(-1).topk(self.config.experts_per_token)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.histc(chosen.float(), bins=self.config.num_experts, min=0, max=self.config.num_experts)
        token = order // self.config.experts_per_token
        done = self._compute(tokens[token], counts.cumsum(0).to(torch.int32))
        done = done * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, token, done).view_as(x)

    def _compute(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Each row through the expert it was sorted to; ``ends`` says where each expert's rows end."""
        gate, up = F.grouped_mm(rows, self.gate_and_up, offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down, offs=ends)
