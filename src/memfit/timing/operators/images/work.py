"""What a convolution has to do: which of its three computations, over which sizes, in which layout.

::

    forward   images x weights -> result
    images    result's gradient x weights -> images' gradient
    weights   images x result's gradient -> weights' gradient

A transposed convolution is the same with images and result exchanged: its forward is the gradient by images of the plain one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from memfit.timing.operators.calls import Argument, Call, Operand


class Way(StrEnum):
    """One of the three computations."""

    FORWARD = "forward"
    IMAGES = "images"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Work:
    """A convolution, as if it were not transposed."""

    images: Operand
    weight: Operand
    result: Operand
    groups: int
    steps: int
    """Its strides, multiplied: so many pixels of the images are there for one of the result."""
    dtype: str
    """``tf32`` where tensor cores multiply float32."""
    is_last: bool
    """Channels are the innermost dimension, as cuDNN's kernels want them."""

    @property
    def batch(self) -> int:
        return self.images.shape[0]

    @property
    def inputs(self) -> int:
        """Channels of the images."""
        return self.images.shape[1]

    @property
    def outputs(self) -> int:
        """Channels of the result."""
        return self.weight.shape[0]

    @property
    def taps(self) -> int:
        """Pixels of the kernel."""
        return math.prod(self.weight.shape[2:])

    @property
    def is_pointwise(self) -> bool:
        """Is it a product of matrices as it stands?"""
        return self.taps == 1 and self.steps == 1

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.weight.shape[1] == 1

    @property
    def flops(self) -> float:
        """Of each of the three."""
        return 2.0 * self.result.numel * self.weight.shape[1] * self.taps

    def result_of(self, way: Way) -> Operand:
        return {Way.FORWARD: self.result, Way.IMAGES: self.images, Way.WEIGHTS: self.weight}[way]

    @property
    def moved_bytes(self) -> int:
        """Each of the three reads two of these and writes the third."""
        return self.images.size_bytes + self.weight.size_bytes + self.result.size_bytes


def work_of(call: Call, allow_tf32: bool) -> tuple[Work, tuple[Way, ...]]:
    """What a call does, and which of the three it is asked for."""
    tensors = [tensor for tensor in call.inputs if len(tensor.shape) > 2]
    is_backward = "backward" in call.name
    result, images, weight = tensors[:3] if is_backward else (call.outputs[0], *tensors[:2])
    first = 4 if is_backward else 3  # strides, padding, dilation, transposed, padding of the result, groups
    is_transposed = _argument(call, first + 3) is True
    asked = _argument(call, 10) if is_backward else None
    ways = (
        tuple(way for way, wanted in zip((Way.IMAGES, Way.WEIGHTS), asked, strict=False) if wanted)
        if isinstance(asked, tuple)
        else (Way.IMAGES, Way.WEIGHTS)
        if is_backward
        else (Way.FORWARD,)
    )
    if is_transposed:
        images, result = result, images
        swapped = {Way.FORWARD: Way.IMAGES, Way.IMAGES: Way.FORWARD, Way.WEIGHTS: Way.WEIGHTS}
        ways = tuple(swapped[way] for way in ways)
    strides = _argument(call, first)
    dtype = "tf32" if images.dtype == "f32" and allow_tf32 else images.dtype
    work = Work(
        images,
        weight,
        result,
        groups=max(1, images.shape[1] // max(1, weight.shape[1])),
        steps=math.prod(step for step in strides if isinstance(step, int)) if isinstance(strides, tuple) else 1,
        dtype=dtype,
        is_last=any(is_channels_last(tensor) for tensor in ((result if is_transposed else images), weight)),
    )
    return work, ways


def is_channels_last(tensor: Operand) -> bool:
    """Torch looks at images and weights of two or three dimensions; in one dimension channels always come first."""
    return len(tensor.shape) > 3 and tensor.stride is not None and tensor.stride[1] == 1


def wants_bias(call: Call) -> bool:
    """Is a bias added, or its gradient wanted?"""
    if "backward" in call.name:
        asked = _argument(call, 10)
        return isinstance(asked, tuple) and len(asked) == 3 and asked[2] is True
    return len(call.arguments) > 2 and isinstance(call.arguments[2], Operand)


def _argument(call: Call, index: int) -> Argument:
    return call.arguments[index] if index < len(call.arguments) else None
