"""How the tensors of a convolution lie in memory, and what torch copies so that they do.

::

    forward     copy of input ──> result ──> copy of weight ──> cuDNN
    backward    copies of input and gradient, kept ──┬──> gradient of the input ──> copies of weight and gradient ──> cuDNN
                                                     └──> copy of gradient ──> gradient of the weight ──> cuDNN

Where one of two operands asks for channels last, everything gets channels last; otherwise everything is made contiguous. What lies
so already is not copied (ATen/native/Convolution.cpp, cudnn/ConvShared.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Operand:
    """A tensor as cuDNN gets it: what has one dimension is an image with one row."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int

    @classmethod
    def of(cls, x: torch.Tensor) -> Operand:
        shape, strides = tuple(x.shape), tuple(x.stride())
        if len(shape) == 3:
            shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
        return cls(shape, strides, x.element_size())

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.element_bytes

    @property
    def asks_for_channels_last(self) -> bool:
        """c10/core/MemoryFormat.h: the strides say it even of a one-by-one kernel, for which both layouts are the same memory."""
        least = 0
        for dim in (1, *range(len(self.shape) - 1, 1, -1), 0):
            if self.strides[dim] < max(least, 1) or (dim == 0 and least == self.strides[1]):
                return False
            least = self.strides[dim] * max(self.shape[dim], 1)
        return True

    def lies(self, channels_last: bool) -> bool:
        """Whether it lies so, without gaps; strides of dimensions of size one do not count."""
        wanted = strides_of(self.shape, channels_last)
        return all(size == 1 or has == want for size, has, want in zip(self.shape, self.strides, wanted, strict=True))

    def laid_out(self, channels_last: bool) -> Operand:
        """Itself, or a copy of it."""
        return self if self.lies(channels_last) else replace(self, strides=tuple(strides_of(self.shape, channels_last)))


def strides_of(shape: Sequence[int], channels_last: bool) -> list[int]:
    """Of a tensor without gaps."""
    dims = range(len(shape) - 1, 0, -1) if not channels_last else (1, *range(len(shape) - 1, 1, -1))
    strides, step = [0] * len(shape), 1
    for dim in (*dims, 0):
        strides[dim] = step
        step *= shape[dim]
    return strides


def is_channels_last(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a convolution runs with channels last. In one dimension the input is made contiguous first; see also ConvUtils.h."""
    if x.dtype == torch.float64 or weight.dtype == torch.float64:
        return False
    return (x.dim() > 3 and Operand.of(x).asks_for_channels_last) or Operand.of(weight).asks_for_channels_last


def layout_of(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format | None:
    """Channels last, or ``None``."""
    return FORMATS.get(x.dim()) if is_channels_last(x, weight) else None


# -- what torch copies ---------------------------------------------------------------------------------------------------------


def copies_of_forward(args: Arguments) -> Sequence[int]:
    """The input, unless it lies as the kernel wants it."""
    x = Operand.of(args[0])
    return _copied(x, is_channels_last(args[0], args[1]))


def copies_after_result(args: Arguments) -> Sequence[int]:
    """The weight, in the forward pass."""
    return _copied(Operand.of(args[1]), is_channels_last(args[0], args[1]))


def copies_of_backward(args: Arguments) -> Sequence[Sequence[int]]:
    """Input and gradient, unless they lie as the kernels want them: for the whole call, then for each gradient by itself."""
    held, _, for_weight = _backward_copies(args)
    return held, (), for_weight, ()


def copies_after_input_gradient(args: Arguments) -> Sequence[int]:
    return _backward_copies(args)[1]


def _backward_copies(args: Arguments) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """For the whole call, for the gradient of the input after there is room for it, for that of the weight before."""
    grad, x, weight = map(Operand.of, args[:3])
    is_transposed, mask = args[7], args[10]
    last = is_channels_last(args[1], args[2])
    held: list[int] = []
    if mask[1] or args[1].dim() == 3:
        held += _copied(x, last)
        x = x.laid_out(last)
    asked = x.asks_for_channels_last
    if is_transposed or grad.asks_for_channels_last != asked:  # a gradient with gaps asks for nothing: each kernel copies it
        held += _copied(grad, asked) if is_transposed else (grad.size_bytes,)
        grad = grad.laid_out(asked)
    last_of_input = grad.asks_for_channels_last or weight.asks_for_channels_last
    last_of_weight = grad.asks_for_channels_last or asked
    return held, (*_copied(weight, last_of_input), *_copied(grad, last_of_input)), _copied(grad, last_of_weight)


def _copied(operand: Operand, channels_last: bool) -> tuple[int, ...]:
    return () if operand.lies(channels_last) else (operand.size_bytes,)


# -- what lies how afterwards --------------------------------------------------------------------------------------------------


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any) -> Any:
    """The result with channels last, where input or weight has channels last."""
    transposed, output_padding, groups = rest
    layout = layout_of(x, weight)
    if layout is None:
        return NotImplemented
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding, strict=True)
    extent = _spread if transposed else _shrink
    spatial = [extent(*each) for each in sizes]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return torch.empty((x.shape[0], channels, *spatial), dtype=x.dtype, device=x.device, memory_format=layout)


def _shrink(size: int, kernel: int, stride: int, padding: int, dilation: int, _: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _spread(size: int, kernel: int, stride: int, padding: int, dilation: int, output_padding: int) -> int:
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1


def convolve_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias_sizes: Any, *rest: Any) -> Any:
    """Gradients with channels last, where input or weight has channels last."""
    layout, mask = layout_of(x, weight), rest[-1]
    if layout is None:
        return NotImplemented
    grads = [
        torch.empty(of.shape, dtype=of.dtype, device=of.device, memory_format=layout) if wanted else None
        for of, wanted in zip((x, weight), mask[:2], strict=True)
    ]
    return (*grads, grad.new_empty((grad.shape[1],)) if mask[2] else None)
