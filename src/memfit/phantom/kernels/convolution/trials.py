"""What cuDNN takes once for each different convolution to find its fastest kernel: ``torch.backends.cudnn.benchmark = True``.

At the first call with new sizes torch asks cuDNN for all kernels that could run it, takes one block as large as the largest
workspace among them that the GPU has room for, measures them all, and gives the block and everything else that is cached back to
the driver (ATen/native/cudnn/Conv_v8.cpp). Later calls take the workspace of the fastest kernel alone.

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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.kernels.rule import Arguments, Trial
from memfit.units import KIB, MIB

COMPLEX = 8
"""Bytes of a complex number in float32."""

SIDES, TILE_SIDE = (16, 32, 64, 128, 256), 32
"""Fourier transforms are made of whole images, which fit a square with one of these sides, or tile by tile."""

HEADER = 16
CHANNELS_OF_SINGLES, CHANNELS_OF_HALVES = 4, 8
NARROW = 64
"""Up to so many channels a float32 result is summed as a whole."""

LARGE_KERNEL = 49
ROWS_OF_TILE, ROWS_OF_NARROW_TILE, COUNTER = 128, 32, 8

PARTIAL_SUMS, HALF_PARTIAL_SUMS = 16 * MIB + KIB, 16 * MIB + 512 * KIB + KIB
PARTIAL_SUMS_OF_PRODUCT = 5 * MIB + KIB
PARTIAL_SUMS_OF_VOLUMES = 8 * MIB
"""The most that was seen where the summands of one result are summed in parts; it varies with what cuDNN considers."""


@dataclass(frozen=True)
class Convolution:
    """A plain convolution, of which a call computes the result or one of the gradients.

    A transposed convolution computes the gradient of the input of the plain one that it is named after.
    """

    x: tuple[int, ...]
    weight: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    has_channels_last: bool

    @property
    def is_single(self) -> bool:
        return self.dtype.itemsize >= 4

    @property
    def num_taps(self) -> int:
        return math.prod(self.weight[2:])

    @property
    def is_strided(self) -> bool:
        return any(step > 1 for step in self.stride)

    @property
    def is_flat(self) -> bool:
        """Images rather than volumes; a sound is an image with one row."""
        return len(self.x) < 5

    @property
    def is_known(self) -> bool:
        """Its like was measured."""
        is_plain = len(self.x) > 3 and self.groups == 1 and all(step == 1 for step in self.dilation)
        return is_plain and (self.dtype, self.has_channels_last) in ((torch.float32, False), (torch.bfloat16, True))

    @property
    def may_be_transformed(self) -> bool:
        """Kernels that use Fourier transforms want float32, images, and padding that is smaller than the kernel."""
        is_image = self.dtype == torch.float32 and len(self.x) == 4
        return is_image and self.is_known and all(map(operator.lt, self.padding, self.weight[2:]))

    def size(self, shape: tuple[int, ...], *channel_dims: int) -> int:
        """Bytes of a tensor, with channels in fours or eights where dims are given."""
        multiple = CHANNELS_OF_SINGLES if self.is_single else CHANNELS_OF_HALVES
        sizes = (-(-size // multiple) * multiple if dim in channel_dims else size for dim, size in enumerate(shape))
        return math.prod(sizes) * self.dtype.itemsize

    def copies(self) -> int:
        """Everything laid out anew."""
        return self.size(self.x, 1) + self.size(self.out, 1) + self.size(self.weight, 0, 1) + HEADER


# -- what is tried -------------------------------------------------------------------------------------------------------------


def try_forward(args: Arguments, result: Any) -> Sequence[Trial | None]:
    """Once for each different call with ``cudnn.benchmark``: the largest workspace among all kernels."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    convolution = _plain(x, weight, result, stride, padding, dilation, transposed, groups)
    return (_trial(input_gradient if transposed else forward, convolution),)


def try_backward(args: Arguments, result: Any) -> Sequence[Trial | None]:
    """Once for each different call with ``cudnn.benchmark``: the largest workspace among all kernels, for each gradient."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = args
    convolution = _plain(x, weight, grad, stride, padding, dilation, transposed, groups)
    for_input = _trial(forward if transposed else input_gradient, convolution) if mask[0] else None
    return for_input, _trial(weight_gradient, convolution) if mask[1] else None, None


def _trial(computes: Any, convolution: Convolution | None) -> Trial | None:
    if convolution is None:
        return None
    key: Hashable = (computes.__name__, convolution)
    return Trial(key=key, sizes=tuple(computes(convolution)), is_known=convolution.is_known)


def _plain(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    groups: int,
) -> Convolution | None:
    """``None`` where a kernel of torch's own runs (ATen/native/cuda/DepthwiseConv2d.cu)."""
    if groups > 1 and weight.shape[1] == 1:
        return None
    of_input, of_output = (tuple(out.shape), tuple(x.shape)) if transposed else (tuple(x.shape), tuple(out.shape))
    return Convolution(
        x=of_input,
        weight=tuple(weight.shape),
        out=of_output,
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        groups=groups,
        dtype=x.dtype,
        has_channels_last=any(_has_channels_last(tensor) for tensor in (x, weight)),
    )


def _has_channels_last(x: torch.Tensor) -> bool:
    return x.dim() >= 4 and x.stride(1) == 1 and x.shape[1] > 1 and math.prod(x.shape[2:]) > 1


# -- workspaces of the kernels that are tried ----------------------------------------------------------------------------------


def forward(of: Convolution) -> list[int]:
    batch, channels, outputs = of.x[0], of.x[1], of.out[1]
    if of.is_single or not of.has_channels_last:
        sizes = [of.copies() + _sums_of_result(of)]
    elif of.is_flat:
        offsets = 4 * channels * of.num_taps + HEADER
        sizes = [of.size(of.x) + of.size(of.out) + (of.size(of.weight) if of.num_taps > 1 else 0) + offsets]
        if channels < CHANNELS_OF_HALVES and of.num_taps >= LARGE_KERNEL:
            sizes.append(
                of.size(of.x, 1) + of.size(of.weight, 0, 1) + 4 * math.prod(of.out) + _counters(of.out, ROWS_OF_NARROW_TILE)
            )
    elif of.num_taps > 1:
        unaligned = of.size(of.x, 1) if channels % CHANNELS_OF_HALVES else 0
        sizes = [unaligned + of.size(of.weight, 0, 1) + HEADER, 0 if unaligned else PARTIAL_SUMS]
    else:
        sizes = [0]
    if side := _side_of_transform(of):
        pairs = max(channels * (batch + outputs), batch * outputs)
        sizes.append(2 * _transform(side) * pairs + of.size(of.weight))
    return sizes


def input_gradient(of: Convolution) -> list[int]:
    batch, channels, outputs = of.x[0], of.x[1], of.out[1]
    if of.is_strided and of.is_flat:
        sizes = [_strided_gradient(of)]
    elif of.is_strided:
        sizes = [of.copies()]
    elif of.is_single or not of.has_channels_last:
        sizes = [of.copies() + PARTIAL_SUMS]
    else:
        sizes = [of.size(of.x) + of.size(of.out) + (of.size(of.weight) if of.num_taps > 1 else 0) + HEADER]
        sizes += [] if of.is_flat else [PARTIAL_SUMS]
    kernels = _kernels_of_phases(of)
    if of.may_be_transformed and all(size > 1 for size in kernels):
        num_phases = math.prod(of.stride)
        inputs = (-(-size // step) for size, step in zip(of.x[2:], of.stride, strict=True))
        num_tiles = math.prod(-(-size // (TILE_SIDE - kernel + 1)) for size, kernel in zip(inputs, kernels, strict=True))
        pairs = num_phases * channels * outputs + min(2, num_tiles) * batch * (num_phases * channels + outputs)
        sizes.append(_transform(TILE_SIDE) * pairs + (_phases(of) if of.is_strided else 0))
    return sizes


def weight_gradient(of: Convolution) -> list[int]:
    batch, channels, outputs = of.x[0], of.x[1], of.out[1]
    in_float32 = 4 * math.prod(of.weight)
    with_counters = in_float32 + in_float32 // 512 + HEADER
    if of.is_single:
        sums = max(PARTIAL_SUMS, 3 * in_float32) if of.is_flat else max(PARTIAL_SUMS_OF_VOLUMES, in_float32 + in_float32 // KIB)
        sizes = [of.copies() + sums]
    elif not of.is_flat:
        sizes = [of.size(of.x, 1) + of.size(of.out, 1) + with_counters]
    else:
        copies = sum(of.size(each, 1) for each in (of.x, of.out) if each[1] % CHANNELS_OF_HALVES or not of.has_channels_last)
        if outputs < CHANNELS_OF_HALVES:
            copies += 4 * math.prod(of.x)
        sizes = [copies + max(HALF_PARTIAL_SUMS, with_counters)]
    if side := _side_of_transform(of):
        pairs = max(channels * outputs, batch * (channels + outputs))
        sizes.append(2 * _transform(side) * pairs + of.size(of.out))
    if of.may_be_transformed and not of.is_strided and of.weight[2:] == (3, 3):
        sizes.append(winograd_bytes(of.x, of.out))
    return sizes


def _sums_of_result(of: Convolution) -> int:
    if of.out[1] <= NARROW and not of.is_strided and of.is_single:
        return 4 * math.prod(of.out) + _counters(of.out, ROWS_OF_TILE)
    if of.is_strided and of.x[1] < CHANNELS_OF_SINGLES:
        return 0
    return PARTIAL_SUMS if of.num_taps > 1 else PARTIAL_SUMS_OF_PRODUCT


def _counters(out: tuple[int, ...], rows: int) -> int:
    return -(-out[0] * math.prod(out[2:]) // rows) * COUNTER + 175


# -- strides: a gradient falls apart into one convolution for each phase of the stride -----------------------------------------


def _kernels_of_phases(of: Convolution) -> list[int]:
    return [-(-size // step) for size, step in zip(of.weight[2:], of.stride, strict=True)]


def _phases(of: Convolution) -> int:
    """The gradient of the input and that of the result with a margin, and a weight for each phase."""
    kernels = _kernels_of_phases(of)
    with_margin = [size + kernel - 1 for size, kernel in zip(of.out[2:], kernels, strict=True)]
    weights = math.prod((*of.weight[:2], *of.stride, *kernels)) * of.dtype.itemsize
    return of.size(of.x) + of.size((*of.out[:2], *with_margin)) + weights + HEADER


def _strided_gradient(of: Convolution) -> int:
    return _phases(of) + (0 if of.is_single else 4 * math.prod(of.x) + _counters(of.x, ROWS_OF_NARROW_TILE))


# -- transforms ----------------------------------------------------------------------------------------------------------------


def _side_of_transform(of: Convolution) -> int:
    """The square that whole images fit, with their padding; 0 where there is none."""
    if not of.may_be_transformed or of.is_strided:
        return 0
    longest = max(size + 2 * around for size, around in zip(of.x[2:], of.padding, strict=True))
    return next((side for side in SIDES if longest <= side), 0)


def _transform(side: int) -> int:
    """Of one real image: half of the numbers are enough, since the other half mirrors them."""
    return COMPLEX * side * (side // 2 + 1)


def winograd_bytes(x: tuple[int, ...], out: tuple[int, ...]) -> int:
    """Tiles of 6 x 6 for every 4 x 4 of the result, and for the weight."""
    num_tiles = math.prod(-(-size // 4) for size in out[2:])
    return 36 * 4 * (x[0] * (x[1] + out[1]) * num_tiles + x[1] * out[1])
