"""How the tensors of a convolution lie in memory, and what torch copies so that they do.

::

    forward     copy of input ──> result ──> copy of weight ──> cuDNN
    backward    copies of input and gradient, kept ──┬──> gradient of the input ──> copies of weight and gradient ──> cuDNN
                                                     └──> copy of gradient ──> gradient of the weight ──> cuDNN
                given back ──> gradient of the bias

Where one of two operands asks for channels last, everything gets channels last; otherwise everything is made contiguous. What lies
so already is not copied (ATen/native/Convolution.cpp, cudnn/ConvShared.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memfit.convolution import ConvGeometry, ConvTensor, runs_channels_last
from memfit.phantom.clock.describe import type_name
from memfit.phantom.kernels.rule import Arguments

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def conv_tensor(x: torch.Tensor) -> ConvTensor:
    return ConvTensor.of(tuple(x.shape), tuple(x.stride()), x.element_size())


def is_channels_last(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a convolution of these runs with channels last."""
    is_double = torch.float64 in (x.dtype, weight.dtype)
    return runs_channels_last(conv_tensor(x), conv_tensor(weight), "f64" if is_double else type_name(x.dtype), x.dim())


def geometry_of(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, settings: Sequence[Any]) -> ConvGeometry:
    """The plain convolution of a call: its input, weight and result, with ``settings`` stride, padding, dilation and whether it is
    transposed."""
    stride, padding, dilation, is_transposed = settings
    channels_last = is_channels_last(x, weight)
    images, result = (y, x) if is_transposed else (x, y)
    return ConvGeometry(
        images=tuple(images.shape),
        weight=tuple(weight.shape),
        result=tuple(result.shape),
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        dtype=type_name(weight.dtype),
        channels_last=channels_last,
    )


def layout_of(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format | None:
    """Channels last, or ``None``."""
    return FORMATS.get(x.dim()) if is_channels_last(x, weight) else None


# -- what torch copies ---------------------------------------------------------------------------------------------------------


def copies_of_forward(args: Arguments) -> Sequence[int]:
    """The input, unless it lies as the kernel wants it."""
    x = conv_tensor(args[0])
    return _copied(x, is_channels_last(args[0], args[1]))


def copies_after_result(args: Arguments) -> Sequence[int]:
    """The weight, in the forward pass."""
    return _copied(conv_tensor(args[1]), is_channels_last(args[0], args[1]))


def copies_of_backward(args: Arguments) -> Sequence[Sequence[int]]:
    """Input and gradient, unless they lie as the kernels want them: for the whole call, for cuDNN's two gradients, then for each
    gradient by itself."""
    held, of_cudnn, _, for_weight = _backward_copies(args)
    return held, of_cudnn, (), for_weight, ()


def copies_after_input_gradient(args: Arguments) -> Sequence[int]:
    return _backward_copies(args)[2]


def _backward_copies(args: Arguments) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    """For the whole call, for the gradients of input and weight, for that of the input after there is room for it, for that of the
    weight before."""
    grad, x, weight = map(conv_tensor, args[:3])
    is_transposed, mask = args[7], args[10]
    last = is_channels_last(args[1], args[2])
    held: list[int] = []
    of_cudnn: list[int] = []
    if mask[1] or args[1].dim() == 3:
        (held if args[1].dim() == 3 else of_cudnn).extend(_copied(x, last))
        x = x.laid_out(last)
    asked = x.asks_for_channels_last
    if is_transposed or grad.asks_for_channels_last != asked:  # a gradient with gaps asks for nothing: each kernel copies it
        of_cudnn += _copied(grad, asked) if is_transposed else (grad.size_bytes,)
        grad = grad.laid_out(asked)
    last_of_input = grad.asks_for_channels_last or weight.asks_for_channels_last
    last_of_weight = grad.asks_for_channels_last or asked
    return held, of_cudnn, (*_copied(weight, last_of_input), *_copied(grad, last_of_input)), _copied(grad, last_of_weight)


def _copied(tensor: ConvTensor, channels_last: bool) -> tuple[int, ...]:
    return () if tensor.lies(channels_last) else (tensor.size_bytes,)


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
