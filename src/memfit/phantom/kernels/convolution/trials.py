"""What cuDNN takes once for each different convolution to find its fastest kernel: ``torch.backends.cudnn.benchmark = True``.

At the first call with new sizes torch asks cuDNN for all kernels that could run it, takes one block as large as the largest
workspace among them that the GPU has room for, measures them all, and gives the block and everything else that is cached back to
the driver (ATen/native/cudnn/Conv_v8.cpp). Later calls take the workspace of the fastest kernel alone, which is taken to be the one
that cuDNN's heuristics name (``library.py``, with what is known of exceptions, or ``rules.py``).

The sizes are those of cuDNN 9.19 on an H200 (benchmarks/truth/convolutions.json; convolution_on_gpu.py compares). In float32 the
largest are those of Fourier transforms, gigabytes where there are many channels: 152 of 156 of these are met to the byte, and four
times cuDNN did not consider the transform. What other kernels take are the copies that were measured, and partial sums, where these
vary the most that was seen, but for one: the gradient of a bfloat16 weight with many channels and few pixels took 54 MiB more. Not
measured, and so without transforms here: groups, dilation, one dimension, float32 with channels last; float16, and bfloat16 without
channels last, which are taken to need everything laid out anew.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from memfit.convolution import ConvGeometry, ConvPass
from memfit.phantom.kernels.convolution.layouts import geometry_of
from memfit.phantom.kernels.rule import Arguments, KernelTrial
from memfit.timing.operators.calls import TYPE_BYTES
from memfit.units import KIB, MIB

COMPLEX = 8
"""Bytes of a complex number in float32."""

SIDES, TILE_SIDE = (16, 32, 64, 128, 256), 32
"""Fourier transforms are made of whole images, which fit a square with one of these sides, or tile by tile."""

HEADER = 16
CHANNELS_OF_SINGLES, CHANNELS_OF_HALVES = 4, 8
NARROW = 64
"""The most channels with which a float32 result is summed as a whole."""

LARGE_KERNEL = 49
ROWS_OF_TILE, ROWS_OF_NARROW_TILE, COUNTER = 128, 32, 8

PARTIAL_SUMS, HALF_PARTIAL_SUMS = 16 * MIB + KIB, 16 * MIB + 512 * KIB + KIB
PARTIAL_SUMS_OF_PRODUCT = 5 * MIB + KIB
PARTIAL_SUMS_OF_VOLUMES = 8 * MIB
"""The most that was seen where the summands of one result are summed in parts; it varies with what cuDNN considers."""


def _is_single(of: ConvGeometry) -> bool:
    return TYPE_BYTES[of.dtype] >= 4


def _is_strided(of: ConvGeometry) -> bool:
    return any(step > 1 for step in of.stride)


def _is_flat(of: ConvGeometry) -> bool:
    """Images rather than volumes; a sound is an image with one row."""
    return len(of.images) < 5


def _is_known(of: ConvGeometry) -> bool:
    """Its like was measured."""
    is_plain = len(of.images) > 3 and of.groups == 1 and all(step == 1 for step in of.dilation)
    return is_plain and (of.dtype, of.channels_last) in (("f32", False), ("bf16", True))


def _may_be_transformed(of: ConvGeometry) -> bool:
    """Kernels that use Fourier transforms want float32, images, and padding that is smaller than the kernel."""
    is_image = of.dtype == "f32" and len(of.images) == 4
    return is_image and _is_known(of) and all(map(operator.lt, of.padding, of.weight[2:]))


def _size(of: ConvGeometry, shape: tuple[int, ...], *channel_dims: int) -> int:
    """Bytes of a tensor, with channels in fours or eights where dims are given."""
    multiple = CHANNELS_OF_SINGLES if _is_single(of) else CHANNELS_OF_HALVES
    sizes = (-(-size // multiple) * multiple if dim in channel_dims else size for dim, size in enumerate(shape))
    return math.prod(sizes) * TYPE_BYTES[of.dtype]


def laid_out_anew(of: ConvGeometry) -> int:
    """Everything laid out anew."""
    return _size(of, of.images, 1) + _size(of, of.result, 1) + _size(of, of.weight, 0, 1) + HEADER


# -- what is tried -------------------------------------------------------------------------------------------------------------


def try_forward(args: Arguments, result: Any) -> Sequence[KernelTrial | None]:
    """Once for each different call with ``cudnn.benchmark``: the largest workspace among all kernels."""
    return (_trial(ConvPass.FORWARD, args[0], args[1], result, args[3:7]),)


def try_backward(args: Arguments, result: Any) -> Sequence[KernelTrial | None]:
    """Once for each different call with ``cudnn.benchmark``: the largest workspace among all kernels, for each gradient."""
    grad, x, weight, mask = *args[:3], args[10]
    wanted = zip((ConvPass.IMAGES, ConvPass.WEIGHTS), mask[:2], strict=True)
    return *(_trial(each, x, weight, grad, args[4:8]) if is_wanted else None for each, is_wanted in wanted), None


def _trial(
    conv_pass: ConvPass, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, settings: Sequence[Any]
) -> KernelTrial | None:
    """``None`` where a kernel of torch's own runs (ATen/native/cuda/DepthwiseConv2d.cu)."""
    geometry = geometry_of(x, weight, y, settings)
    if geometry.is_depthwise:
        return None
    conv_pass = conv_pass.transposed() if settings[3] else conv_pass
    sizes = {ConvPass.FORWARD: forward, ConvPass.IMAGES: input_gradient, ConvPass.WEIGHTS: weight_gradient}[conv_pass](geometry)
    return KernelTrial(key=(conv_pass, geometry), sizes=tuple(sizes), is_known=_is_known(geometry))


# -- workspaces of the kernels that are tried ----------------------------------------------------------------------------------


def forward(of: ConvGeometry) -> list[int]:
    batch, channels, outputs = of.images[0], of.images[1], of.result[1]
    if _is_single(of) or not of.channels_last:
        sizes = [laid_out_anew(of) + _sums_of_result(of)]
    elif _is_flat(of):
        offsets = 4 * channels * of.taps + HEADER
        sizes = [_size(of, of.images) + _size(of, of.result) + (_size(of, of.weight) if of.taps > 1 else 0) + offsets]
        if channels < CHANNELS_OF_HALVES and of.taps >= LARGE_KERNEL:
            summed = 4 * math.prod(of.result) + _counters(of.result, ROWS_OF_NARROW_TILE)
            sizes.append(_size(of, of.images, 1) + _size(of, of.weight, 0, 1) + summed)
    elif of.taps > 1:
        unaligned = _size(of, of.images, 1) if channels % CHANNELS_OF_HALVES else 0
        sizes = [unaligned + _size(of, of.weight, 0, 1) + HEADER, 0 if unaligned else PARTIAL_SUMS]
    else:
        sizes = [0]
    if side := _side_of_transform(of):
        pairs = max(channels * (batch + outputs), batch * outputs)
        sizes.append(2 * _transform(side) * pairs + _size(of, of.weight))
    return sizes


def input_gradient(of: ConvGeometry) -> list[int]:
    batch, channels, outputs = of.images[0], of.images[1], of.result[1]
    if _is_strided(of) and _is_flat(of):
        sizes = [_strided_gradient(of)]
    elif _is_strided(of):
        sizes = [laid_out_anew(of)]
    elif _is_single(of) or not of.channels_last:
        sizes = [laid_out_anew(of) + PARTIAL_SUMS]
    else:
        sizes = [_size(of, of.images) + _size(of, of.result) + (_size(of, of.weight) if of.taps > 1 else 0) + HEADER]
        sizes += [] if _is_flat(of) else [PARTIAL_SUMS]
    kernels = _kernels_of_phases(of)
    if _may_be_transformed(of) and all(size > 1 for size in kernels):
        num_phases = math.prod(of.stride)
        inputs = (-(-size // step) for size, step in zip(of.images[2:], of.stride, strict=True))
        num_tiles = math.prod(-(-size // (TILE_SIDE - kernel + 1)) for size, kernel in zip(inputs, kernels, strict=True))
        pairs = num_phases * channels * outputs + min(2, num_tiles) * batch * (num_phases * channels + outputs)
        sizes.append(_transform(TILE_SIDE) * pairs + (_phases(of) if _is_strided(of) else 0))
    return sizes


def weight_gradient(of: ConvGeometry) -> list[int]:
    batch, channels, outputs = of.images[0], of.images[1], of.result[1]
    in_float32 = 4 * math.prod(of.weight)
    with_counters = in_float32 + in_float32 // 512 + HEADER
    if _is_single(of):
        sums = max(PARTIAL_SUMS, 3 * in_float32) if _is_flat(of) else max(PARTIAL_SUMS_OF_VOLUMES, in_float32 + in_float32 // KIB)
        sizes = [laid_out_anew(of) + sums]
    elif not _is_flat(of):
        sizes = [_size(of, of.images, 1) + _size(of, of.result, 1) + with_counters]
    else:
        copies = sum(_size(of, each, 1) for each in (of.images, of.result) if each[1] % CHANNELS_OF_HALVES or not of.channels_last)
        if outputs < CHANNELS_OF_HALVES:
            copies += 4 * math.prod(of.images)
        sizes = [copies + max(HALF_PARTIAL_SUMS, with_counters)]
    if side := _side_of_transform(of):
        pairs = max(channels * outputs, batch * (channels + outputs))
        sizes.append(2 * _transform(side) * pairs + _size(of, of.result))
    if _may_be_transformed(of) and not _is_strided(of) and of.weight[2:] == (3, 3):
        sizes.append(winograd_bytes(of.images, of.result))
    return sizes


def _sums_of_result(of: ConvGeometry) -> int:
    if of.result[1] <= NARROW and not _is_strided(of) and _is_single(of):
        return 4 * math.prod(of.result) + _counters(of.result, ROWS_OF_TILE)
    if _is_strided(of) and of.images[1] < CHANNELS_OF_SINGLES:
        return 0
    return PARTIAL_SUMS if of.taps > 1 else PARTIAL_SUMS_OF_PRODUCT


def _counters(out: tuple[int, ...], rows: int) -> int:
    return -(-out[0] * math.prod(out[2:]) // rows) * COUNTER + 175


# -- strides: a gradient falls apart into one convolution for each phase of the stride -----------------------------------------


def _kernels_of_phases(of: ConvGeometry) -> list[int]:
    return [-(-size // step) for size, step in zip(of.weight[2:], of.stride, strict=True)]


def _phases(of: ConvGeometry) -> int:
    """The gradient of the input and that of the result with a margin, and a weight for each phase."""
    kernels = _kernels_of_phases(of)
    with_margin = [size + kernel - 1 for size, kernel in zip(of.result[2:], kernels, strict=True)]
    weights = math.prod((*of.weight[:2], *of.stride, *kernels)) * TYPE_BYTES[of.dtype]
    return _size(of, of.images) + _size(of, (*of.result[:2], *with_margin)) + weights + HEADER


def _strided_gradient(of: ConvGeometry) -> int:
    return _phases(of) + (0 if _is_single(of) else 4 * math.prod(of.images) + _counters(of.images, ROWS_OF_NARROW_TILE))


# -- transforms ----------------------------------------------------------------------------------------------------------------


def _side_of_transform(of: ConvGeometry) -> int:
    """The square that whole images fit, with their padding; 0 where there is none."""
    if not _may_be_transformed(of) or _is_strided(of):
        return 0
    longest = max(size + 2 * around for size, around in zip(of.images[2:], of.padding, strict=True))
    return next((side for side in SIDES if longest <= side), 0)


def _transform(side: int) -> int:
    """Of one real image: half of the numbers are enough, since the other half mirrors them."""
    return COMPLEX * side * (side // 2 + 1)


def winograd_bytes(x: tuple[int, ...], out: tuple[int, ...]) -> int:
    """Tiles of 6 x 6 for every 4 x 4 of the result, and for the weight."""
    num_tiles = math.prod(-(-size // 4) for size in out[2:])
    return 36 * 4 * (x[0] * (x[1] + out[1]) * num_tiles + x[1] * out[1])
