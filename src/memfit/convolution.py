"""A convolution as memory and time both see it: its sizes, its layout, and which of three computations runs. It imports no torch.

::

    forward   images x weights -> result
    images    result's gradient x weights -> images' gradient
    weights   images x result's gradient -> weights' gradient

A transposed convolution is described as the plain one that it is named after, with images and result exchanged: its forward is the
gradient by images of the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class ConvPass(StrEnum):
    """One of the three computations."""

    FORWARD = "forward"
    IMAGES = "images"
    WEIGHTS = "weights"

    def transposed(self) -> ConvPass:
        """What a transposed convolution calls so is this one of the plain convolution."""
        return {ConvPass.FORWARD: ConvPass.IMAGES, ConvPass.IMAGES: ConvPass.FORWARD}.get(self, self)


@dataclass(frozen=True)
class ConvTensor:
    """A tensor as cuDNN gets it: what has one dimension is an image with one row."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @classmethod
    def of(cls, shape: tuple[int, ...], strides: tuple[int, ...] | None, item_bytes: int) -> ConvTensor:
        """``strides`` may be left out for a contiguous tensor."""
        steps = tuple(strides_of(shape, channels_last=False)) if strides is None else strides
        if len(shape) == 3:
            shape, steps = (*shape[:2], 1, shape[2]), (*steps[:2], shape[2] * steps[2], steps[2])
        return cls(shape, steps, item_bytes)

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

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

    def laid_out(self, channels_last: bool) -> ConvTensor:
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


def runs_channels_last(images: ConvTensor, weight: ConvTensor, dtype: str, num_dims: int) -> bool:
    """Whether torch runs a convolution of tensors with ``num_dims`` dimensions with channels last.

    Either of the two that it is given may ask for it, but images of one dimension are made contiguous first, and float64 has no
    such kernel (ATen/native/ConvUtils.h).
    """
    if dtype == "f64":
        return False
    return (num_dims > 3 and images.asks_for_channels_last) or weight.asks_for_channels_last


@dataclass(frozen=True, kw_only=True)
class ConvGeometry:
    """A plain convolution. Shapes are torch's: batch or outputs, channels, then pixels."""

    images: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    """As calls name it: ``f32``, ``bf16``."""
    channels_last: bool

    @property
    def batch(self) -> int:
        return self.images[0]

    @property
    def inputs(self) -> int:
        """Channels of the images."""
        return self.images[1]

    @property
    def outputs(self) -> int:
        """Channels of the result."""
        return self.weight[0]

    @property
    def groups(self) -> int:
        return max(1, self.inputs // max(1, self.weight[1]))

    @property
    def taps(self) -> int:
        """Pixels of the kernel."""
        return math.prod(self.weight[2:])

    @property
    def steps(self) -> int:
        """Pixels of the images for each of the result: the strides, multiplied."""
        return math.prod(self.stride)

    @property
    def is_pointwise(self) -> bool:
        """It is a product of matrices as it stands."""
        return self.taps == 1 and self.steps == 1

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.weight[1] == 1

    def in_two_dimensions(self) -> ConvGeometry:
        """One dimension is two, of which the first has size one: as ATen/native/Convolution.cpp does it."""
        if len(self.images) != 3:
            return self
        images, weight, result = ((*shape[:2], 1, shape[2]) for shape in (self.images, self.weight, self.result))
        return replace(
            self, images=images, weight=weight, result=result, channels_last=False,
            stride=(1, *self.stride), padding=(0, *self.padding), dilation=(1, *self.dilation),
        )  # fmt: skip
