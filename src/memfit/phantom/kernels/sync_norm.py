"""The operators of SyncBatchNorm, which torch has for CUDA only and tells no shapes of.

Facts from ATen/native/cuda/Normalization.cu: statistics have one element a channel, in float32 where the input has less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def answers() -> dict[Any, Callable[..., Any]]:
    return {
        aten.batch_norm_stats.default: lambda x, eps: (_per_channel(x), _per_channel(x)),
        aten.batch_norm_gather_stats.default: _gather,
        aten.batch_norm_gather_stats_with_counts.default: _gather,
        aten.batch_norm_elemt.default: lambda x, *args: torch.empty_like(x),
        aten.batch_norm_backward_reduce.default: _backward_reduce,
        aten.batch_norm_backward_elemt.default: lambda grad, x, *args: torch.empty_like(x),
    }


def _per_channel(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[1], dtype=torch.float32 if x.dtype.itemsize < 4 else x.dtype)


def _gather(x: torch.Tensor, mean: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return mean.new_empty(mean.shape[1]), mean.new_empty(mean.shape[1])


def _backward_reduce(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    sums = [torch.empty_like(mean) if needs_input else None for _ in range(2)]
    like = weight if weight is not None else mean
    return *sums, torch.empty_like(like) if needs_weight else None, torch.empty_like(like) if needs_bias else None
