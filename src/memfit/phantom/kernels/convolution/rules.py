"""Convolutions as cuDNN runs them: how their results lie in memory, and what they take.

cuDNN's kernels want channels last, and in float16 and bfloat16 a multiple of eight channels. Where tensors are not like that, it
copies them. The gradient of a weight is summed in parts. Measured on an H200 with cuDNN 9.19 (benchmarks/truth/kernel_memory.json
and the traces beside it). Which kernel cuDNN chooses is not documented, so single workspaces can be off by some MiB. Where the
library is installed, it is asked instead (``library.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memfit.phantom.kernels.convolution.layouts import (
    convolve,
    convolve_backward,
    copies_after_input_gradient,
    copies_after_result,
    copies_of_backward,
    copies_of_forward,
    is_channels_last,
)
from memfit.phantom.kernels.convolution.library import Convolution, Pass, workspace_bytes
from memfit.phantom.kernels.convolution.trials import try_backward, try_forward
from memfit.phantom.kernels.reduction import staging_blocks
from memfit.phantom.kernels.rule import MEASURED_CUDNN, Arguments, Rule, bytes_of
from memfit.phantom.target import Target
from memfit.units import MIB

CHANNELS_OF_SINGLES, CHANNELS_OF_HALVES = 4, 8
ALIGNMENT, TILE = 16, 128
FEW_CHANNELS, LARGE_KERNEL = 3, 49
"""float32 images of at most 3 channels are convolved as they are, unless kernels have 49 elements or more and overlap."""

MANY_MULTIPLICATIONS = 2**30
"""From so many on, a float32 product of images that are not aligned is worth a copy of everything (between 0.9 and 1.6 e9)."""

FEWEST_ROWS, ROWS_OF_PART, SPLIT_TILE = 1024, 95, 128
"""In float32 with channels last the gradient of a one-by-one kernel is summed in parts until two tiles are there for each SM."""

MOST_PRODUCT_PARTS, MOST_SPLIT_TILES = 64 * MIB, 64
KERNEL_PARTS, MOST_KERNEL_PARTS = 14, 8 * MIB
ROWS_OF_HALF_PART = 2048
"""The gradient of a weight is summed in this many parts, or in as many as fit into the given number of bytes."""


def forward(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Copies with channels last of what has them elsewhere."""
    x, weight, stride, groups = args[0], args[1], args[3], args[8]
    if _is_depthwise(weight, groups):
        return ()
    asked = _ask_cudnn(target, Pass.FORWARD, x, weight, result, args[3:7])
    if asked is not None:
        return (*copies_after_result(args), asked)
    if _lies_well(x, weight) or _is_patches(x, weight, stride):
        return ()
    if groups > 1:
        copies = _copied_in_groups(x, weight, result, groups)
    elif _is_strided_product_of_volumes(x, weight, stride):
        copies = bytes_of(x) + bytes_of(weight) + (0 if not is_channels_last(x, weight) else bytes_of(result))
    else:
        copies = _copied_by_cudnn(x, weight, result, stride)
    return (*copies_after_result(args), copies)


def backward(target: Target, args: Arguments, result: Any) -> Sequence[Sequence[int]]:
    """For the gradients of input, weight and bias each: copies with channels last, and partial sums."""
    grad, x, weight, groups = args[0], args[1], args[2], args[9]
    bias = staging_blocks(target, grad, (0, *range(2, grad.dim()))) if result[2] is not None else ()
    if _is_depthwise(weight, groups):
        return (), (), bias
    asked = [_ask_cudnn(target, of, x, weight, grad, args[4:8]) for of in (Pass.OF_INPUT, Pass.OF_WEIGHT)]
    if None in asked and _lies_well(x, weight):
        return (), (), bias
    for_input, for_weight = (
        estimated if told is None else told
        for told, estimated in zip(asked, _estimate_backward(target, x, weight, grad, args[4], groups), strict=True)
    )
    return (*copies_after_input_gradient(args), for_input), (for_weight,), bias


def _estimate_backward(
    target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, stride: Any, groups: int
) -> tuple[int, int]:
    """What cuDNN takes for the gradients of input and weight, by what was measured."""
    if groups > 1:
        copies = _copied_in_groups(x, weight, grad, groups)
        return copies, copies or (bytes_of(x) + bytes_of(grad) if weight.dtype == torch.float32 else 0)
    copies = _copied_by_cudnn(x, weight, grad, stride)
    if _is_matrix_product(weight, stride) and weight.dtype == torch.float32:
        return copies, _single_product_parts(target, x, weight, grad)
    if _is_large_kernel_on_few_channels(x, weight):
        return copies, _all_laid_out_anew(x, weight, grad, stride) + _kernel_parts(target, weight, grad)
    if not _is_matrix_product(weight, stride) or (copies and _is_aligned(x)):
        return copies, copies + _kernel_parts(target, weight, grad)
    return copies, copies if copies and _fits_tiles(weight) else _product_parts(target, x, weight)


def _ask_cudnn(target: Target, of: Pass, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, settings: Any) -> int | None:
    """What the installed library would take, if there is one and this is not a product, which is cuBLAS's."""
    stride, padding, dilation, is_transposed = settings
    if _is_matrix_product(weight, stride):
        return None
    if is_transposed:
        x, y, of = y, x, {Pass.FORWARD: Pass.OF_INPUT, Pass.OF_INPUT: Pass.FORWARD}.get(of, of)
    convolution = Convolution(
        of=of,
        x=tuple(x.shape),
        weight=tuple(weight.shape),
        y=tuple(y.shape),
        dtype=weight.dtype,
        channels_last=is_channels_last(x, weight),
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
    )
    return workspace_bytes(target, convolution)


def _product_parts(target: Target, x: torch.Tensor, weight: torch.Tensor) -> int:
    """In half types: one part in float32 for each image, or where channels are last, as many as keep the GPU busy."""
    if not is_channels_last(x, weight):
        return x.shape[0] * 4 * weight.numel()
    rows, (outputs, inputs) = x.numel() // x.shape[1], weight.shape[:2]
    num_tiles = -(-outputs // SPLIT_TILE) * -(-inputs // SPLIT_TILE)
    num_parts = min(target.gpu.num_sms // 2, target.gpu.num_sms // num_tiles, rows // FEWEST_ROWS)
    return num_parts * 4 * weight.numel() if num_parts > 1 and num_tiles < MOST_SPLIT_TILES else 0


def _single_product_parts(target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """One part for each image of more than a pixel, or where channels are last, as many as keep the GPU busy."""
    if not is_channels_last(x, weight):
        has_pixels, parts = math.prod(x.shape[2:]) > 1, x.shape[0] * bytes_of(weight)
        if has_pixels and parts < MOST_PRODUCT_PARTS:
            return parts
        return bytes_of(x) + bytes_of(grad) + (_kernel_parts(target, weight, grad) if _is_aligned(x) else 0)
    rows, (outputs, inputs) = x.numel() // x.shape[1], weight.shape[:2]
    if rows < FEWEST_ROWS or (rows < 2 * FEWEST_ROWS and inputs > outputs):
        return 0
    num_parts = 2 * target.gpu.num_sms // (-(-outputs // SPLIT_TILE) * -(-inputs // SPLIT_TILE))
    while rows < ROWS_OF_PART * num_parts:
        num_parts //= 2
    return num_parts * bytes_of(weight) if num_parts > 1 else 0


def _fits_tiles(weight: torch.Tensor) -> bool:
    """Whether the kernels that want everything laid out anew have tiles for these channels, in float32 all of them."""
    return weight.element_size() >= 4 or all(channels % TILE == 0 for channels in weight.shape[:2])


# -- sizes ---------------------------------------------------------------------------------------------------------------------


def _kernel_parts(target: Target, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """In half types as many as keep half of the GPU busy, each of them with some thousand pixels."""
    in_float32 = 4 * weight.numel()
    if weight.element_size() < 4:
        num_tiles = -(-weight.shape[0] // SPLIT_TILE) * -(-weight[0].numel() // SPLIT_TILE)
        parts = min(target.gpu.num_sms // 2 // num_tiles, grad.numel() // grad.shape[1] // ROWS_OF_HALF_PART)
        return parts * in_float32 if parts > 1 else 0
    return min(KERNEL_PARTS, MOST_KERNEL_PARTS // in_float32) * in_float32


def _is_depthwise(weight: torch.Tensor, groups: int) -> bool:
    """ATen/native/cuda/DepthwiseConv2d.cu: a kernel of torch's own."""
    return groups > 1 and weight.shape[1] == 1


def _lies_well(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return _has_few_channels(x) and math.prod(weight.shape[2:]) < LARGE_KERNEL


def _is_patches(x: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    """Kernels that do not overlap, as where an image is cut into patches."""
    return _has_few_channels(x) and tuple(weight.shape[2:]) == tuple(stride)


def _has_few_channels(x: torch.Tensor) -> bool:
    return x.element_size() >= 4 and x.shape[1] <= FEW_CHANNELS and not _is_channels_last(x)


def _copied_by_cudnn(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, stride: Any) -> int:
    """What cuDNN takes to copy everything into channels last: little if it is so already, nothing for a plain matrix product."""
    if is_channels_last(x, weight):
        unaligned = [_padded_bytes(of, 1) for of in (x, out) if of.shape[1] % CHANNELS_OF_HALVES]
        return sum(unaligned) + (_padded_bytes(weight, 0, 1) if unaligned else 0)
    if all(size == 1 for size in weight.shape[2:]):
        is_product = _is_matrix_product(weight, stride) and _stays_product(x, weight)
        return 0 if is_product else bytes_of(x) + bytes_of(out)
    return _padded_bytes(x, 1) + _padded_bytes(weight, 0, 1) + _padded_bytes(out, 1)


def _copied_in_groups(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, groups: int) -> int:
    """Everything is laid out anew, with a power of two of channels in each group; nothing where they are so, and last, already."""
    inputs, outputs = x.shape[1] // groups, out.shape[1] // groups
    of_inputs, of_outputs = _power_of_two(inputs), _power_of_two(outputs)
    if is_channels_last(x, weight) and (inputs, outputs) == (of_inputs, of_outputs):
        return 0
    of_weight = bytes_of(weight) * of_inputs * of_outputs // (inputs * outputs)
    return bytes_of(x) * of_inputs // inputs + bytes_of(out) * of_outputs // outputs + of_weight


def _power_of_two(size: int) -> int:
    """The next one, unless it is one."""
    return 1 << (size - 1).bit_length()


def _stays_product(x: torch.Tensor, weight: torch.Tensor) -> bool:
    if weight.dtype == torch.float32:
        return _is_aligned(x) or x.numel() // x.shape[1] * weight.numel() < MANY_MULTIPLICATIONS
    return _is_aligned(x)


def _is_strided_product_of_volumes(x: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    is_product = x.dim() == 5 and math.prod(weight.shape[2:]) == 1 and not _is_matrix_product(weight, stride)
    return is_product and x.dtype == torch.float32


def _is_large_kernel_on_few_channels(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Everything is laid out anew for the gradient of such a weight, whatever layout it has."""
    return x.dtype == torch.float32 and x.shape[1] <= FEW_CHANNELS and math.prod(weight.shape[2:]) >= LARGE_KERNEL


def _all_laid_out_anew(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, stride: Any) -> int:
    """With channels in fours, unless an image is cut into patches."""
    if x.dim() == 4 and tuple(weight.shape[2:]) == tuple(stride):
        return bytes_of(x) + bytes_of(weight) + bytes_of(grad)
    return _in_fours(x, 1) + _in_fours(weight, 0, 1) + _in_fours(grad, 1)


def _in_fours(x: torch.Tensor, *channel_dims: int) -> int:
    sizes = (
        -(-size // CHANNELS_OF_SINGLES) * CHANNELS_OF_SINGLES if dim in channel_dims else size for dim, size in enumerate(x.shape)
    )
    return math.prod(sizes) * x.element_size()


def _padded_bytes(x: torch.Tensor, *channel_dims: int) -> int:
    """The size with as many channels as kernels for half types ask for."""
    if x.element_size() >= 4:
        return bytes_of(x)
    multiples = [CHANNELS_OF_HALVES if dim in channel_dims else 1 for dim in range(x.dim())]
    return math.prod(-(-size // of) * of for size, of in zip(x.shape, multiples, strict=True)) * x.element_size()


def _is_matrix_product(weight: torch.Tensor, stride: Any) -> bool:
    return all(size == 1 for size in weight.shape[2:]) and all(step == 1 for step in stride)


def _is_aligned(x: torch.Tensor) -> bool:
    return math.prod(x.shape[2:]) * x.element_size() % ALIGNMENT == 0


def _is_channels_last(x: torch.Tensor) -> bool:
    """A tensor with one channel has both layouts at once, and nothing needs to be copied."""
    return x.dim() >= 4 and x.stride(1) == 1 and x.shape[1] > 1


RULES = (
    Rule(
        operators=("convolution",),
        returns=convolve,
        copies=copies_of_forward,
        takes=forward,
        tries=try_forward,
        assumption="workspaces of convolutions were estimated: cuDNN's choice of kernels is its own; where its library is installed"
        " (pip install --no-deps nvidia-cudnn-cu13), it is asked",
        source=f"ATen/native/ConvUtils.h, cudnn/Conv_v8.cpp; sizes {MEASURED_CUDNN}, within some MiB",
    ),
    Rule(
        operators=("convolution_backward",),
        returns=convolve_backward,
        copies=copies_of_backward,
        takes=backward,
        tries=try_backward,
        by_output=True,
        source=f"ATen/native/ConvUtils.h, Convolution.cpp, cudnn/Conv_v8.cpp; sizes {MEASURED_CUDNN}, within some MiB",
    ),
)
