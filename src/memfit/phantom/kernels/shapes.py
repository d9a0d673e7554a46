"""Shapes that torch does not tell of operators that CUDA can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.phantom.kernels import convolution, inplace, recurrent

aten = torch.ops.aten


def answers() -> dict[Any, Callable[..., Any]]:
    """Stand-ins by operator; ``NotImplemented`` leaves it to torch."""
    return {
        aten._grouped_mm.default: _grouped_mm,
        aten._safe_softmax.default: _safe_softmax,
        aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
        aten.mse_loss.default: _mean_loss,
        aten.smooth_l1_loss.default: _mean_loss,
        aten._fused_rms_norm.default: _fused_rms_norm,
        aten._fused_rms_norm_backward.default: _fused_rms_norm_backward,
        aten._pack_padded_sequence.default: _pack_padded_sequence,
        aten._ctc_loss.default: _ctc_loss,
        aten._ctc_loss_backward.default: lambda grad, log_probs, *args, **kwargs: log_probs.new_empty(log_probs.shape),
        **recurrent.answers(),
        **inplace.answers(),
        **convolution.answers(),
    }


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """ATen/native/cuda/GroupedBlas.cpp has a slow way for other types than bfloat16; torch's shape function refuses them."""
    if left.dtype == torch.bfloat16:
        return NotImplemented
    shaped = aten._grouped_mm(left.bfloat16(), right.bfloat16(), *args, **kwargs)
    return shaped.new_empty(shaped.shape, dtype=left.dtype)


def _pack_padded_sequence(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """ATen/native/PackedSequence.cpp. Lengths are on the host, and so are the batch sizes."""
    steps = [int((lengths > step).sum()) for step in range(int(lengths.max()))]
    return x.new_empty((sum(steps), *x.shape[2:])), torch.tensor(steps, device="cpu")


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """ATen/native/cuda/LossCTC.cu: a probability for every step and every place in a target with blanks between its parts."""
    steps, batch = log_probs.shape[:2] if log_probs.dim() == 3 else (log_probs.shape[0], 1)
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.shape[0] // batch)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _fused_rms_norm(x: torch.Tensor, shape: Any, *args: Any) -> Any:
    """ATen/native/cuda/layer_norm_kernel.cu: one number in float32 for every row."""
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(rows, dtype=wide)


def _fused_rms_norm_backward(grad: torch.Tensor, x: torch.Tensor, shape: Any, rstd: Any, weight: Any, mask: Any) -> Any:
    return (x.new_empty(x.shape) if mask[0] else None, weight.new_empty(weight.shape) if mask[1] and weight is not None else None)


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """ATen/native/SoftMax.cpp: rows that are masked out altogether are set to zero in place."""
    return torch.empty_like(x, dtype=dtype or x.dtype, memory_format=torch.contiguous_format)


def _efficient_attention(query: torch.Tensor, key: Any, value: Any, bias: Any, wants_sums: bool, *args: Any, **kwargs: Any) -> Any:
    """ATen/native/transformers/cuda/attention.cu: sums for backward, padded; the seeds of dropout stay on the host."""
    batch, heads, length, _ = query.shape
    out = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    sums = query.new_empty((batch, heads, -(-length // 32) * 32 if wants_sums else 0), dtype=torch.float32)
    return out, sums, *(torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2))


def _mean_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, *args: Any) -> Any:
    """ATen/native/Loss.cpp: the mean is written over the losses of all elements, and their memory lives as long as it does."""
    if not reduction:
        return NotImplemented
    shape = torch.broadcast_shapes(x.shape, target.shape)
    return x.new_empty(shape, dtype=torch.promote_types(x.dtype, target.dtype)).as_strided((), ())
