"""The MLP of a block: dense (``SwiGLU``, ``GELU``), or many experts of which each token uses a few.

::

    tokens ──> router: which experts, how much of each ──> sorted by expert ─┬─> one grouped product for all experts ─┬─> summed
                                                                            └─> shared experts, for every token ─────┘

With expert parallelism each GPU holds some of the experts (``group`` says which GPUs): the sorted tokens go to the GPUs of their
experts by an all-to-all, and come back by another.

The tokens are sorted by expert and all experts compute in one grouped matrix product, as torchtitan and transformers do. The sizes
do not depend on which expert a token goes to; with expert parallelism they do, and a prediction says what it takes them to be.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.models.config import ModelConfig
from memfit.torch_compat.distributed import exchange_rows


class SwiGLU(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class GELU(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class RoutedExperts(nn.Module):
    """The experts' weights, and the grouped product of the rows sorted to them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_experts = config.num_experts
        self.group: dist.ProcessGroup | None = None
        """The GPUs that share the experts; ``None`` if each has all of them."""
        self.gate_and_up = nn.Parameter(torch.empty(config.num_experts, config.dim, 2 * config.hidden))
        self.down = nn.Parameter(torch.empty(config.num_experts, config.hidden, config.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.gate_and_up, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Runs each row through its expert; ``counts`` is the number of rows of each expert."""
        if self.group is None:
            return self._compute(rows, counts.cumsum(0).to(torch.int32))
        done: Tensor = self._compute_elsewhere(rows, counts, self.group)
        return done

    def _compute(self, rows: Tensor, ends: Tensor) -> Tensor:
        """``ends`` are the ends of each expert's rows."""
        gate_and_up, down = (_local(weight) for weight in (self.gate_and_up, self.down))
        gate, up = F.grouped_mm(rows, gate_and_up, offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, down, offs=ends)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _compute_elsewhere(self, rows: Tensor, counts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Sends rows to the GPUs of their experts, and the results back."""
        with torch.no_grad():
            sent = counts.long()
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=group)
            sent_to, received_from = (each.view(group.size(), -1).sum(1).tolist() for each in (sent, received))
        arrived = exchange_rows(rows, received_from, sent_to, group)
        # They arrive by sender, and by expert from each: a grouped product wants them by expert alone.
        here = received.view(group.size(), -1)
        expert = torch.arange(here.shape[1], device=rows.device).repeat(group.size())
        order = expert.repeat_interleave(received, output_size=arrived.shape[0]).argsort(stable=True)
        done = self._compute(arrived[order], here.sum(0).cumsum(0).to(torch.int32))
        return exchange_rows(done[order.argsort()], sent_to, received_from, group)


class Experts(nn.Module):
    correction: Tensor
    """Correction of the scores for load balance, set by the training loop."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.dim, config.num_experts, bias=False)
        self.routed = RoutedExperts(config)
        self.shared = SwiGLU(config.dim, config.shared_experts * config.hidden) if config.shared_experts else None
        if config.sigmoid_router:
            self.register_buffer("correction", torch.zeros(config.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self._choose(self.router(tokens).float())
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.histc(chosen.float(), bins=self.config.num_experts, min=0, max=self.config.num_experts)
        token = order // self.config.experts_per_token
        done = self.routed(tokens[token], counts)
        done = done * weights.flatten()[order].unsqueeze(-1)
        out = torch.zeros_like(tokens).index_add(0, token, done)
        if self.shared is not None:
            out = out + self.shared(tokens)
        return out.view_as(x)

    def _choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token, and their weights."""
        if not self.config.sigmoid_router:
            weights, chosen = scores.softmax(-1).topk(self.config.experts_per_token)
            return weights, chosen
        scores = scores.sigmoid()
        _, chosen = (scores + self.correction).topk(self.config.experts_per_token)
        return scores.gather(-1, chosen), chosen


def _local(weight: Tensor) -> Tensor:
    """The experts of this GPU."""
    to_local = getattr(weight, "to_local", None)
    return weight if to_local is None else to_local()
