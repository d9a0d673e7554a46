"""Layer, group, RMS and batch norm, and the operators of SyncBatchNorm, which torch has for CUDA only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, Kernel, Rule
from memfit.phantom.target import Target
from memfit.torch_compat.devices import is_cudnn_enabled

aten = torch.ops.aten

# -- layer norm and RMS norm ---------------------------------------------------------------------------------------------------

MANY_ROWS, ROWS_PER_PART, MOST_PARTS = 65536, 32, 32768


def _rms_norm(target: Target) -> Kernel:
    """`_fused_rms_norm` since torch 2.9, if input and weight have the same type; otherwise its steps, in float32."""

    def rms_norm(
        x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if target.torch >= (2, 9) and not x.is_complex() and (weight is None or weight.dtype == x.dtype):
            return aten._fused_rms_norm(x, shape, weight, eps)[0]  # type: ignore[no-any-return]
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        wide = x.float()
        dims = tuple(range(-len(shape), 0))
        normed = (wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True).add(eps))).type_as(x)
        return normed if weight is None else normed * weight

    return rms_norm


def _fused_rms_norm(x: torch.Tensor, shape: Sequence[int], *args: Any) -> Any:
    """The result, and a float32 number for every row."""
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(rows, dtype=wide)


def _fused_rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Sequence[int], rstd: torch.Tensor, weight: torch.Tensor | None, mask: Sequence[bool]
) -> Any:
    """The gradients of input and weight that are wanted."""
    return (x.new_empty(x.shape) if mask[0] else None, weight.new_empty(weight.shape) if mask[1] and weight is not None else None)


def _layer_norm_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Where rows are many and short: the gradients of weight and bias, in parts that are added up afterwards."""
    return _parts_of_weight_gradient(target, args[1], math.prod(args[2])) * 2


def _rms_norm_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Where rows are many and short: the gradient of the weight, in parts that are added up afterwards."""
    return _parts_of_weight_gradient(target, args[1], math.prod(args[2]))


def _copies_of_parts(args: Arguments) -> Sequence[int]:
    """Inputs and gradients that are not contiguous."""
    tensors = (value for value in args[:2] if isinstance(value, torch.Tensor))
    return [tensor.numel() * tensor.element_size() for tensor in tensors if not tensor.is_contiguous()]


def _parts_of_weight_gradient(target: Target, x: torch.Tensor, width: int) -> tuple[int, ...]:
    rows, columns = x.numel() // max(width, 1), -(-width // ROWS_PER_PART)
    if rows <= MANY_ROWS or columns >= target.gpu.num_sms / 2:
        return ()
    parts = min(-(-rows // ROWS_PER_PART), MOST_PARTS // columns)
    return (parts * width * x.element_size(),)


# -- group norm ----------------------------------------------------------------------------------------------------------------


def _group_norm(target: Target) -> Kernel:
    """`native_group_norm`, of a contiguous copy where the input has channels last."""

    def group_norm(
        x: torch.Tensor,
        groups: int,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
        cudnn_enabled: bool = True,
    ) -> torch.Tensor:
        batch, channels = x.shape[:2]
        size = x.numel() // max(batch * channels, 1)
        return aten.native_group_norm(x.contiguous(), weight, bias, batch, channels, size, groups, eps)[0]  # type: ignore[no-any-return]

    return group_norm


def _group_norm_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A factor and an offset for every channel of every sample."""
    return (4 * args[3] * args[4],) * 2


def _group_norm_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Three numbers for every channel of every sample, and two for every group."""
    batch, channels, groups = args[5], args[6], args[8]
    return (*(4 * batch * channels,) * 3, *(4 * batch * groups,) * 2)


# -- batch norm ----------------------------------------------------------------------------------------------------------------

MOST_SAMPLES = {(True, True): 131070, (True, False): 262136, (False, True): 880801, (False, False): 65535}
"""Up to here cuDNN is used, by whether there is nothing but channels, and whether it trains."""


def _batch_norm(target: Target) -> Kernel:
    """`cudnn_batch_norm` of a contiguous copy, where the input is neither contiguous nor has channels last, which is kept for
    backward; in bfloat16, or without weights, `native_batch_norm`."""

    def batch_norm(
        x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, cudnn: bool
    ) -> torch.Tensor:
        if cudnn and _is_cudnns(x, weight, bias, mean, training):
            x = x.contiguous(memory_format=_own_format(x))
        return aten.batch_norm.default.decompose(x, weight, bias, mean, var, training, momentum, eps, cudnn)  # type: ignore[no-any-return]

    return batch_norm


def _own_format(x: torch.Tensor) -> torch.memory_format:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return last if last is not None and x.is_contiguous(memory_format=last) else torch.contiguous_format


def _is_cudnns(x: torch.Tensor, weight: Any, bias: Any, mean: Any, training: bool) -> bool:
    has_all = weight is not None and bias is not None and (mean is not None or training)
    if not has_all or torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype == torch.float16 and weight.dtype != torch.float32):
        return False
    return is_cudnn_enabled() and x.shape[0] <= MOST_SAMPLES[x.dim() == 2, training]


# -- SyncBatchNorm -------------------------------------------------------------------------------------------------------------


def _batch_norm_stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two numbers for every channel, in float32 where the input's type is narrower."""
    dtype = torch.float32 if x.dtype.itemsize < 4 else x.dtype
    return x.new_empty(x.shape[1], dtype=dtype), x.new_empty(x.shape[1], dtype=dtype)


def _gather_stats(x: torch.Tensor, mean: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Two numbers for every channel, from those of all ranks."""
    return mean.new_empty(mean.shape[1]), mean.new_empty(mean.shape[1])


def _normalize(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """A tensor like the input."""
    return torch.empty_like(x)


def _normalize_backward(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
    """A tensor like the input."""
    return torch.empty_like(x)


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
    """Two sums for every channel, and the gradients of weight and bias, as far as they are wanted."""
    sums = [torch.empty_like(mean) if needs_input else None for _ in range(2)]
    like = weight if weight is not None else mean
    return *sums, torch.empty_like(like) if needs_weight else None, torch.empty_like(like) if needs_bias else None


LAYER_NORM = "ATen/native/cuda/layer_norm_kernel.cu"
GROUP_NORM = "ATen/native/cuda/group_norm_kernel.cu"
BATCH_NORM = "ATen/native/cuda/Normalization.cu"

RULES = (
    Rule(operators=("native_layer_norm",), copies=_copies_of_parts, source=LAYER_NORM),
    Rule(operators=("native_layer_norm_backward",), copies=_copies_of_parts, takes=_layer_norm_backward_blocks, source=LAYER_NORM),
    Rule(operators=("rms_norm",), runs=_rms_norm, source="ATen/native/layer_norm.cpp"),
    Rule(
        operators=("_fused_rms_norm",),
        is_one_kernel=True,
        returns=_fused_rms_norm,
        copies=_copies_of_parts,
        source=f"native_functions.yaml; {LAYER_NORM}",
    ),
    Rule(
        operators=("_fused_rms_norm_backward",),
        returns=_fused_rms_norm_backward,
        copies=_copies_of_parts,
        takes=_rms_norm_backward_blocks,
        source=LAYER_NORM,
    ),
    Rule(operators=("group_norm",), runs=_group_norm, source="ATen/native/group_norm.cpp"),
    Rule(operators=("native_group_norm",), takes=_group_norm_blocks, source=GROUP_NORM),
    Rule(operators=("native_group_norm_backward",), takes=_group_norm_backward_blocks, source=GROUP_NORM),
    Rule(operators=("batch_norm",), runs=_batch_norm, source="ATen/native/Normalization.cpp"),
    Rule(operators=("batch_norm_stats",), returns=_batch_norm_stats, source=BATCH_NORM),
    Rule(operators=("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"), returns=_gather_stats, source=BATCH_NORM),
    Rule(operators=("batch_norm_elemt",), returns=_normalize, source=BATCH_NORM),
    Rule(operators=("batch_norm_backward_reduce",), returns=_backward_reduce, source=BATCH_NORM),
    Rule(operators=("batch_norm_backward_elemt",), returns=_normalize_backward, source=BATCH_NORM),
)
