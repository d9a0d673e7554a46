"""The parts of flash_attn beside attention that scripts import most: padding, rotary embedding, cross entropy, RMS norm.

Facts: flash_attn/bert_padding.py, layers/rotary.py, losses/cross_entropy.py, ops/triton/cross_entropy.py and
ops/triton/layer_norm.py of 2.8. Where the Python part of the package is installed, its own code runs instead
(docs/libraries.md says how), and takes the same.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from memfit.phantom.current import current
from memfit.phantom.libraries.flash_attention import BELOW_AUTOGRAD, COMPILED, FUNCTIONS_2
from memfit.phantom.libraries.stand_ins import Fill, filling
from memfit.phantom.libraries.triton import tune_once

# -- bert_padding --------------------------------------------------------------------------------------------------------------


class IndexFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.num_rows = x.shape[0]
        flat = x.flatten(1)
        picked = torch.gather(flat, 0, indices[:, None].expand(-1, flat.shape[1]))
        return picked.reshape(-1, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        flat = grad.flatten(1)
        made = flat.new_zeros((ctx.num_rows, flat.shape[1]))
        made.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
        return made.reshape(ctx.num_rows, *grad.shape[1:]), None


class IndexPutFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, num_rows: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        made = values.new_zeros((num_rows, *values.shape[1:]))
        made[indices] = values
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        return grad[indices], None, None


def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> Any:
    return IndexFirstAxis.apply(x, indices)  # type: ignore[no-untyped-call]


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, num_rows: int) -> Any:
    return IndexPutFirstAxis.apply(values, indices, num_rows)  # type: ignore[no-untyped-call]


def unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: Any = None) -> Any:
    """The rows that the mask leaves, where they were, where each sequence begins, the longest one, and all lengths."""
    current()
    everything = attention_mask + unused_mask if unused_mask is not None else attention_mask
    lengths = everything.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(everything.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    begins = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, begins, longest, used


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> Any:
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


# -- rotary --------------------------------------------------------------------------------------------------------------------


class ApplyRotary(torch.autograd.Function):
    """Keeps the tables only; a new tensor in each direction, unless it works in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inplace: bool) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        if inplace:
            ctx.mark_dirty(x)
            return x
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad if ctx.inplace else torch.empty_like(grad), None, None, None


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
) -> Any:
    current()
    return ApplyRotary.apply(x, cos, sin, inplace)  # type: ignore[no-untyped-call]


def apply_rotary_emb_qkv_(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    current()
    return ApplyRotary.apply(qkv, cos, sin, True)  # type: ignore[no-untyped-call]


class RotaryEmbedding(nn.Module):
    """Its tables grow with the longest sequence that it has seen."""

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: Any = None, device: Any = None
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        frequencies = 1.0 / (self.base ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim))
        self.inv_freq: torch.Tensor
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, qkv: torch.Tensor, kv: Any = None, seqlen_offset: Any = 0, max_seqlen: Any = None, **options: Any) -> Any:
        length = max_seqlen if max_seqlen is not None else qkv.shape[1] + (seqlen_offset if isinstance(seqlen_offset, int) else 0)
        if self._tables is None or self._tables[0].shape[0] < length or self._tables[0].dtype != qkv.dtype:
            angles = torch.outer(torch.arange(length, device=qkv.device, dtype=torch.float32), self.inv_freq.float())
            self._tables = torch.cos(angles).to(qkv.dtype), torch.sin(angles).to(qkv.dtype)
        turned = ApplyRotary.apply(qkv, *self._tables, kv is None)  # type: ignore[no-untyped-call]
        return turned if kv is None else (turned, ApplyRotary.apply(kv, *self._tables, True))  # type: ignore[no-untyped-call]


# -- losses and norms ----------------------------------------------------------------------------------------------------------


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits, a sum for each row and the labels; the gradient may take the logits' place."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, inplace: bool) -> Any:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        losses, sums, squares = (logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3))
        ctx.save_for_backward(logits, sums, labels)
        ctx.mark_non_differentiable(squares)
        ctx.inplace = inplace
        return losses, squares

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *others: Any) -> Any:
        logits = ctx.saved_tensors[0]
        return logits if ctx.inplace else torch.empty_like(logits), None, None


def cross_entropy_loss(
    logits: torch.Tensor, labels: torch.Tensor, *args: Any, inplace_backward: bool = False, **options: Any
) -> Any:
    current()
    return _CrossEntropy.apply(logits, labels, inplace_backward)  # type: ignore[no-untyped-call]


class CrossEntropyLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, *args: Any, **options: Any
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.inplace_backward = bool(options.get("inplace_backward", False))

    def forward(self, input: torch.Tensor, target: torch.Tensor, precomputed_lse: Any = None) -> Any:
        losses, _ = cross_entropy_loss(input, target, inplace_backward=self.inplace_backward)
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses


class _Norm(torch.autograd.Function):
    """Keeps its input, which is the sum with the residual where there is one, and a number or two for each row."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, residual: Any, returns_sum: bool, has_mean: bool
    ) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(flat)
        summed = torch.empty_like(flat, dtype=residual.dtype) if residual is not None else flat
        rows = [flat.new_empty(flat.shape[0], dtype=torch.float32) for _ in range(2 if has_mean else 1)]
        ctx.tuning_key = flat.shape[-1], flat.dtype, residual is not None, returns_sum, bias is not None, has_mean
        tune_once("_layer_norm_fwd_1pass_kernel", ctx.tuning_key)
        ctx.save_for_backward(summed, weight, *([bias] if bias is not None else []), *rows)
        ctx.has_bias, ctx.has_residual, ctx.shape, ctx.dtype = bias is not None, residual is not None, x.shape, x.dtype
        result = out.reshape(x.shape)
        return (result, summed.reshape(x.shape)) if returns_sum else result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *others: Any) -> Any:
        summed, weight = ctx.saved_tensors[:2]
        made = torch.empty_like(summed, dtype=ctx.dtype)
        parts = weight.new_empty((8 * current().target.gpu.num_sms, weight.shape[0]), dtype=torch.float32)
        bias_parts = torch.empty_like(parts) if ctx.has_bias else None
        tune_once("_layer_norm_bwd_kernel", ctx.tuning_key)
        grads = parts.sum(0).to(weight.dtype), bias_parts.sum(0).to(weight.dtype) if bias_parts is not None else None
        shaped = made.reshape(ctx.shape)
        return shaped, *grads, shaped if ctx.has_residual else None, None, None


def rms_norm_fn(x: torch.Tensor, weight: torch.Tensor, bias: Any, residual: Any = None, *args: Any, **options: Any) -> Any:
    current()
    return _Norm.apply(x, weight, bias, residual, bool(options.get("prenorm")), False)  # type: ignore[no-untyped-call]


def layer_norm_fn(x: torch.Tensor, weight: torch.Tensor, bias: Any, residual: Any = None, *args: Any, **options: Any) -> Any:
    current()
    return _Norm.apply(x, weight, bias, residual, bool(options.get("prenorm")), not options.get("is_rms_norm"))  # type: ignore[no-untyped-call]


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None, **options: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: torch.Tensor, residual: Any = None, prenorm: bool = False, **options: Any) -> Any:
        return rms_norm_fn(x, self.weight, None, residual, prenorm=prenorm)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> Any:
    return rms_norm_fn(x, weight, None)


# -- the package ---------------------------------------------------------------------------------------------------------------


def _attention(module: ModuleType) -> None:
    module.__dict__.update(FUNCTIONS_2)


def _interface(module: ModuleType) -> None:
    """The public functions, and what other packages reach for below them."""
    module.__dict__.update(FUNCTIONS_2 | BELOW_AUTOGRAD, flash_attn_gpu=SimpleNamespace(**COMPILED))


def _rotary(module: ModuleType) -> None:
    filling(apply_rotary_emb, apply_rotary_emb_qkv_, RotaryEmbedding)(module)
    module.__dict__["apply_rotary_emb_func"] = apply_rotary_emb


MODULES: dict[str, Fill] = {
    "flash_attn": _attention,
    "flash_attn.flash_attn_interface": _interface,
    "flash_attn.bert_padding": filling(
        unpad_input, pad_input, index_first_axis, index_put_first_axis, IndexFirstAxis, IndexPutFirstAxis
    ),
    "flash_attn.layers.rotary": _rotary,
    "flash_attn.losses.cross_entropy": filling(CrossEntropyLoss),
    "flash_attn.ops.triton.cross_entropy": filling(cross_entropy_loss),
    "flash_attn.ops.triton.layer_norm": filling(rms_norm_fn, layer_norm_fn, RMSNorm),
    "flash_attn.ops.rms_norm": filling(RMSNorm, rms_norm),
}
