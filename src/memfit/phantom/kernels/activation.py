"""Softmax, log-softmax, dropout, and activations that have a kernel of their own on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, Kernel, ResultPlace, Rule, TakenBlocks, bytes_of
from memfit.phantom.target import Target

aten = torch.ops.aten


def _softmax(target: Target) -> Kernel:
    """`_softmax`, which converts float16 to float32 itself where that is asked for."""
    return _converts_inside(aten._softmax)


def _log_softmax(target: Target) -> Kernel:
    """`_log_softmax`, which converts float16 to float32 itself where that is asked for."""
    return _converts_inside(aten._log_softmax)


def _converts_inside(kernel: Kernel) -> Kernel:
    def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if dtype == torch.float32 and x.dtype == torch.float16:
            return kernel(x, dim, True)  # type: ignore[no-any-return]
        return kernel(x if dtype is None else x.to(dtype), dim, False)  # type: ignore[no-any-return]

    return softmax


def _softmax_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A contiguous copy of an input that is not."""
    return () if args[0].is_contiguous() else (bytes_of(args[0]),)


def _softmax_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """The gradient times the output, which lies like the gradient, and contiguous copies."""
    return (bytes_of(args[0]), *_log_softmax_backward_blocks(target, args, result))


def _log_softmax_backward_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Contiguous copies of the gradient and the output where they are not."""
    return [bytes_of(tensor) for tensor in args[:2] if not tensor.is_contiguous()]


def _dropout_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Nothing; the mask comes before the output."""
    return (ResultPlace(1), ResultPlace(0)) if args[2] is not False and 0 < args[1] < 1 else ()


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """One tensor: rows in which everything is masked are set to zero in place."""
    return torch.empty_like(x, dtype=dtype or x.dtype, memory_format=torch.contiguous_format)


def _safe_softmax_blocks(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """A mask of the elements that are minus infinity, one of the rows that are so as a whole, and the zero to set those to."""
    x = args[0]
    return x.numel(), x.numel() // max(x.shape[args[1]], 1), x.element_size()


RULES = (
    Rule(operators=("native_dropout",), takes=_dropout_blocks, source="ATen/native/cuda/Dropout.cu"),
    Rule(operators=("softmax.int",), runs=_softmax, source="ATen/native/SoftMax.cpp"),
    Rule(operators=("log_softmax.int",), runs=_log_softmax, source="ATen/native/SoftMax.cpp"),
    Rule(operators=("_softmax", "_log_softmax"), takes=_softmax_blocks, source="ATen/native/cuda/SoftMax.cu"),
    Rule(operators=("_softmax_backward_data",), takes=_softmax_backward_blocks, source="ATen/native/cuda/SoftMax.cu"),
    Rule(operators=("_log_softmax_backward_data",), takes=_log_softmax_backward_blocks, source="ATen/native/cuda/SoftMax.cu"),
    Rule(operators=("_safe_softmax",), returns=_safe_softmax, takes=_safe_softmax_blocks, source="ATen/native/SoftMax.cpp"),
    Rule(operators=("silu_backward", "mish_backward"), is_one_kernel=True, source="native_functions.yaml"),
)
