"""What convolutions take, as cuDNN runs them.

cuDNN's kernels want channels last, and in float16 and bfloat16 a multiple of eight channels. Where tensors are not like that, it
copies them, if that pays. The gradient of a weight is summed in parts. One-by-one kernels are products, and mostly left to cuBLAS.
Measured on an H200 with cuDNN 9.19 (benchmarks/truth/kernel_memory.json, the traces beside it, and 9,152 convolutions one by one:
``benchmarks/kernels/cudnn_on_gpu.py``). Which kernel cuDNN chooses is not documented; thresholds here are where most of what was
measured changes sides, so single workspaces can be off by some MiB. Where the library is installed, it is asked instead
(``library.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from memfit.convolution import ConvPass
from memfit.phantom.kernels.convolution.layouts import (
    conv_tensor,
    convolve,
    convolve_backward,
    copies_after_input_gradient,
    copies_after_result,
    copies_of_backward,
    copies_of_forward,
    geometry_of,
    is_channels_last,
)
from memfit.phantom.kernels.convolution.library import reservations, workspace_bytes
from memfit.phantom.kernels.convolution.segments import DEPTHS, Tiling, num_resident_blocks, partial_sums
from memfit.phantom.kernels.convolution.trials import try_backward, try_forward, winograd_bytes
from memfit.phantom.kernels.reduction import staging_blocks
from memfit.phantom.kernels.rule import MEASURED_CUDNN, Arguments, Rule, bytes_of
from memfit.phantom.target import Target
from memfit.units import MIB

CHANNELS_OF_SINGLES, CHANNELS_OF_HALVES = 4, 8
FEW_CHANNELS, LARGE_KERNEL = 3, 49
"""float32 images of at most 3 channels are convolved as they are, unless kernels have 49 elements or more and overlap."""

LARGE_KERNEL_ON_VOLUMES, CHANNELS_OF_LARGE_KERNEL = 64, 16
"""Kernels of 4 x 4 x 4 and more over volumes of so many channels, in float32: 36 of 42 that were measured copy no result."""

SHORT_SUM = 160
"""float32 results that are sums of fewer products are computed as the tensors lie: a copy for tensor cores does not pay."""

FEW_USES, FEW_OUTPUTS = 30, 192
"""Nor does it in half types for few channels, where a number that is copied is multiplied less often than this."""

ALIGNMENT, HEAVY_WEIGHT = 16, 900_000
HEAVY_PRODUCTS = {4: 2**25, 2: 2**23}
"""cuBLAS multiplies each image with the weight. By bytes of an element: from this many bytes of a float32 weight for each
image on, everything is laid out anew for one product, if images are not aligned, or in float32 from ``HEAVY_WEIGHT`` on."""

MOST_PARTS, MANY_INPUTS = {4: 5, 2: 2}, 448
"""By bytes of an element: the gradient of a weight has a part for each image, unless the parts are this many times larger than what
would have to be copied; in half types only where there are ``MANY_INPUTS`` channels to sum up."""

THIN, LARGE_IMAGE = range(8, 33), 9000
"""(channels, least pixels): a float32 product of so few channels over such large images is not left to cuBLAS either."""

DEPTHWISE_IMAGE, DEPTHWISE_PARTS = 512, 528
"""The gradient of a float32 weight of 7 x 7 or more for each channel, with channels last: from this many pixels on (between 196 and
784) it is summed in 512 parts, beside 16 numbers for one."""

WORTH_TRANSFORMING = 13_000_000_000
"""Multiplications, from which on the gradient of a weight can be worth a transform (between 12.3 and 15 e9)."""

FEWEST_ROWS, ROWS_OF_PART, SPLIT_TILE, NARROW_TILE = 1024, 95, 128, 64
"""In float32 with channels last the gradient of a one-by-one kernel is summed in parts until two tiles are there for each SM."""

FILLED_TILES = 0.7
"""Other kernels run where tiles would be filled less with channels than this."""

KERNEL_PARTS, MOST_KERNEL_PARTS = 14, 8 * MIB
"""Large kernels on few channels are summed in this many parts, or in as many as fit into the given number of bytes."""

MOST_SPLIT_TILES = 64
ROWS_OF_HALF_PART = 2048
"""The gradient of a weight in half types is summed in parts of this many pixels, unless there are tiles enough."""


def forward(target: Target, args: Arguments, result: Any) -> Sequence[int]:
    """Copies with channels last of what has them elsewhere."""
    x, weight, stride, groups = args[0], args[1], args[3], args[8]
    if _is_of_torch(x, weight, groups):
        return copies_after_result(args)
    asked = _ask_cudnn(target, ConvPass.FORWARD, x, weight, result, args[3:7])
    if asked is not None:
        return (*copies_after_result(args), asked)
    if _lies_well(x, weight) or _is_patches(x, weight, stride) or _is_depthwise(weight, groups):
        return copies_after_result(args)
    if groups > 1:
        copies = _copied_in_groups(x, weight, result, groups)
    elif _is_strided_product_of_volumes(x, weight, stride):
        copies = bytes_of(x) + bytes_of(weight) + (0 if not is_channels_last(x, weight) else bytes_of(result))
    else:
        copies = _copied_for_result(x, weight, result, stride)
    return (*copies_after_result(args), copies)


def backward(target: Target, args: Arguments, result: Any) -> Sequence[Sequence[int]]:
    """For the gradients of input, weight and bias each: copies with channels last, and partial sums."""
    grad, x, weight, groups = args[0], args[1], args[2], args[9]
    bias = staging_blocks(target, grad, (0, *range(2, grad.dim()))) if result[2] is not None else ()
    if _is_of_torch(x, weight, groups):
        return copies_after_input_gradient(args), (), bias
    asked = [_ask_cudnn(target, each, x, weight, grad, args[4:8]) for each in (ConvPass.IMAGES, ConvPass.WEIGHTS)]
    for_input, for_weight = (
        estimated if told is None else told
        for told, estimated in zip(asked, _estimate_backward(target, x, weight, grad, args[4:8], groups), strict=True)
    )
    if groups == 1 and _is_transformed(target, x, weight, grad, args[4:8]):
        for_weight = winograd_bytes(tuple(x.shape), tuple(grad.shape))
    return (*copies_after_input_gradient(args), for_input), (for_weight,), bias


def _estimate_backward(
    target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, settings: Any, groups: int
) -> tuple[int, int]:
    """What cuDNN takes for the gradients of input and weight, by what was measured."""
    stride = settings[0]
    if _lies_well(x, weight):
        return 0, 0
    if _is_depthwise(weight, groups):
        return 0, _depthwise_parts(x, weight, grad)
    if groups > 1:
        copies = _copied_in_groups(x, weight, grad, groups)
        is_single = weight.dtype == torch.float32
        laid_out = copies or (bytes_of(x) + bytes_of(grad) if is_single else 0)
        return copies, laid_out + (_segments(target, x, weight, grad, settings) if is_single else 0)
    copies = _copied_by_cudnn(x, weight, grad, stride)
    if _is_strided_product_of_volumes(x, weight, stride) and x.shape[2] > 1 and not is_channels_last(x, weight):
        copies = bytes_of(x) + bytes_of(grad)
    if _is_matrix_product(weight, stride):
        of_weight = _single_product_parts if weight.dtype == torch.float32 else _product_parts
        return copies, of_weight(target, x, weight, grad)
    if _is_large_kernel_on_few_channels(x, weight):
        num_parts = min(KERNEL_PARTS, MOST_KERNEL_PARTS // bytes_of(weight))
        return copies, _all_laid_out_anew(x, weight, grad, stride) + num_parts * bytes_of(weight)
    if weight.element_size() < 4:
        return copies, copies + _kernel_parts(target, weight, grad)
    laid_out = copies or (bytes_of(x) + bytes_of(weight) + bytes_of(grad) if _sums_are_short(x, weight) else 0)
    return copies, laid_out + _segments(target, x, weight, grad, settings)


def _segments(target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, settings: Any) -> int:
    """Partial sums of a float32 weight's gradient, with tiles as wide as its channels ask for."""
    geometry = geometry_of(x, weight, grad, settings)
    channels = geometry.weight[0] * geometry.weight[1] // geometry.images[1], geometry.weight[1]
    rows, columns = (NARROW_TILE if each <= NARROW_TILE else SPLIT_TILE for each in channels)
    filled = math.prod(channels) / math.prod(-(-each // tile) * tile for each, tile in zip(channels, (rows, columns), strict=True))
    if filled < FILLED_TILES:
        return 0
    tiling = Tiling(rows=rows, columns=columns, depth=DEPTHS[0])
    return partial_sums(ConvPass.WEIGHTS, geometry, tiling, num_resident_blocks(1, target.gpu.num_sms))


def _ask_cudnn(
    target: Target, conv_pass: ConvPass, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, settings: Any
) -> int | None:
    """What the installed library would take, if there is one and this is not a product, which is cuBLAS's."""
    if _is_matrix_product(weight, settings[0]):
        return None
    return workspace_bytes(target, conv_pass.transposed() if settings[3] else conv_pass, geometry_of(x, weight, y, settings))


def _product_parts(target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """In half types: one part in float32 for each image, or where channels are last, as many as keep the GPU busy."""
    rows, (outputs, inputs) = x.numel() // x.shape[1], weight.shape[:2]
    if not is_channels_last(x, weight):
        parts, copies = x.shape[0] * 4 * weight.numel(), _padded_bytes(x, 1) + _padded_bytes(grad, 1)
        return copies if inputs >= MANY_INPUTS and parts > MOST_PARTS[2] * copies else parts
    num_tiles = -(-outputs // SPLIT_TILE) * -(-inputs // SPLIT_TILE)
    num_parts = min(target.gpu.num_sms // 2, target.gpu.num_sms // num_tiles, rows // FEWEST_ROWS)
    return num_parts * 4 * weight.numel() if num_parts > 1 and num_tiles < MOST_SPLIT_TILES else 0


def _single_product_parts(target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """One part for each image of more than a pixel, or where channels are last, as many as keep the GPU busy."""
    rows, (outputs, inputs) = x.numel() // x.shape[1], weight.shape[:2]
    if not is_channels_last(x, weight):
        parts, copies = x.shape[0] * bytes_of(weight), bytes_of(x) + bytes_of(grad)
        num_pixels = math.prod(x.shape[2:])
        is_thin = num_pixels >= LARGE_IMAGE and min(outputs, inputs) in THIN
        return copies if num_pixels == 1 or is_thin or parts > MOST_PARTS[4] * copies else parts
    if rows < FEWEST_ROWS or (rows < 2 * FEWEST_ROWS and inputs > outputs):
        return 0
    num_parts = 2 * target.gpu.num_sms // (-(-outputs // SPLIT_TILE) * -(-inputs // SPLIT_TILE))
    while rows < ROWS_OF_PART * num_parts:
        num_parts //= 2
    return num_parts * bytes_of(weight) if num_parts > 1 else 0


# -- sizes ---------------------------------------------------------------------------------------------------------------------


def _kernel_parts(target: Target, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """In half types as many as keep half of the GPU busy, each of them with some thousand pixels."""
    num_tiles = -(-weight.shape[0] // SPLIT_TILE) * -(-weight[0].numel() // SPLIT_TILE)
    parts = min(target.gpu.num_sms // 2 // num_tiles, grad.numel() // grad.shape[1] // ROWS_OF_HALF_PART)
    return parts * 4 * weight.numel() if parts > 1 else 0


def _is_depthwise(weight: torch.Tensor, groups: int) -> bool:
    return groups > 1 and weight.shape[1] == 1


def _is_of_torch(x: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """ATen/native/cuda/DepthwiseConv2d.cu: torch's own kernel. With channels last it is cuDNN's, unless images are bfloat16."""
    return _is_depthwise(weight, groups) and (not is_channels_last(x, weight) or (x.dim() == 4 and x.dtype == torch.bfloat16))


def _depthwise_parts(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """For small kernels and images there are kernels that take next to nothing. Otherwise every channel gets three beside it, and
    the gradient of the weight is summed in parts."""
    if math.prod(weight.shape[2:]) < LARGE_KERNEL or math.prod(x.shape[2:]) < DEPTHWISE_IMAGE or x.element_size() < 4:
        return 0
    return CHANNELS_OF_SINGLES * (bytes_of(x) + bytes_of(grad)) + DEPTHWISE_PARTS * bytes_of(weight)


def _is_transformed(target: Target, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, settings: Any) -> bool:
    """Whether cuDNN computes the gradient of a float32 weight by Winograd's transform, with cuBLAS: for much work on many channels,
    whose tiles are too few for all SMs, and too many to be cut in two."""
    stride, _, dilation, is_transposed = settings
    is_plain = tuple(weight.shape[2:]) == (3, 3) and all(step == 1 for step in (*stride, *dilation)) and not is_transposed
    if not is_plain or weight.dtype != torch.float32 or is_channels_last(x, weight) or min(weight.shape[:2]) <= 2 * SPLIT_TILE:
        return False
    num_tiles = math.prod(-(-channels // SPLIT_TILE) for channels in weight.shape[:2]) * 9
    num_multiplications = grad.numel() // grad.shape[1] * weight.numel()
    return target.gpu.num_sms // 2 < num_tiles < target.gpu.num_sms and num_multiplications >= WORTH_TRANSFORMING


def _lies_well(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return _has_few_channels(x) and math.prod(weight.shape[2:]) < LARGE_KERNEL


def _is_patches(x: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    """Kernels that do not overlap, as where an image is cut into patches."""
    return _has_few_channels(x) and tuple(weight.shape[2:]) == tuple(stride)


def _has_few_channels(x: torch.Tensor) -> bool:
    # A tensor with one channel has both layouts at once, and nothing needs to be copied.
    is_last = x.dim() >= 4 and x.shape[1] > 1 and conv_tensor(x).asks_for_channels_last
    return x.element_size() >= 4 and x.shape[1] <= FEW_CHANNELS and not is_last


def _copied_by_cudnn(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, stride: Any) -> int:
    """What cuDNN takes to copy everything into channels last: little if it is so already, nothing for a plain matrix product."""
    if _is_matrix_product(weight, stride):
        return 0
    if is_channels_last(x, weight):
        unaligned = [_padded_bytes(of, 1) for of in (x, out) if of.shape[1] % CHANNELS_OF_HALVES]
        return sum(unaligned) + (_padded_bytes(weight, 0, 1) if unaligned else 0)
    if _sums_are_short(x, weight):
        return 0
    if all(size == 1 for size in weight.shape[2:]):
        return bytes_of(x) + bytes_of(out)
    return _padded_bytes(x, 1) + _padded_bytes(weight, 0, 1) + _padded_bytes(out, 1)


def _copied_for_result(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, stride: Any) -> int:
    """The same in the forward pass, in which a large product is laid out anew, and few channels in half types are not."""
    if is_channels_last(x, weight):
        return _copied_by_cudnn(x, weight, out, stride)
    if _is_matrix_product(weight, stride):
        return bytes_of(x) + bytes_of(out) if _is_heavy_product(x, weight) else 0
    num_uses = out.numel() * weight[0].numel() / (x.numel() + out.numel() + weight.numel())
    is_small = x.shape[1] <= CHANNELS_OF_HALVES and out.shape[1] < FEW_OUTPUTS
    if x.element_size() < 4 and is_small and num_uses < FEW_USES:
        return 0
    if _is_large_kernel_on_volumes(x, weight):
        return bytes_of(x) + bytes_of(weight)
    return _copied_by_cudnn(x, weight, out, stride)


def _is_large_kernel_on_volumes(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the result is written as it lies, and not laid out anew."""
    is_large = x.dim() == 5 and math.prod(weight.shape[2:]) >= LARGE_KERNEL_ON_VOLUMES
    return is_large and x.dtype == torch.float32 and min(weight.shape[:2]) >= CHANNELS_OF_LARGE_KERNEL


def _is_heavy_product(x: torch.Tensor, weight: torch.Tensor) -> bool:
    is_single = weight.dtype == torch.float32
    is_aligned = math.prod(x.shape[2:]) * x.element_size() % ALIGNMENT == 0
    is_candidate = (not is_aligned or weight.numel() >= HEAVY_WEIGHT) if is_single else (not is_aligned and x.dim() < 5)
    return is_candidate and x.shape[0] * 4 * weight.numel() >= HEAVY_PRODUCTS[4 if is_single else 2]


def _sums_are_short(x: torch.Tensor, weight: torch.Tensor) -> bool:
    is_short = weight[0].numel() < SHORT_SUM and math.prod(weight.shape[2:]) < LARGE_KERNEL
    return is_short and weight.dtype == torch.float32 and not is_channels_last(x, weight)


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


@cache
def _assumption(target: Target) -> str:
    told = reservations(target)
    if told is None:
        return (
            "workspaces of convolutions were estimated: cuDNN's choice of kernels is its own; where its library is installed"
            " (pip install 'memfit[cudnn]'), it is asked"
        )
    return f"workspaces of convolutions were {'; '.join(told)}. Those of one-by-one kernels were estimated"


RULES = (
    Rule(
        operators=("convolution",),
        returns=convolve,
        copies=copies_of_forward,
        takes=forward,
        tries=try_forward,
        assumption=_assumption,
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
