"""What a call of a convolution has to do, as its price needs to know it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memfit.convolution import ConvGeometry, ConvPass, ConvTensor, runs_channels_last
from memfit.timing.operators.calls import TYPE_BYTES, Argument, Call, Operand


@dataclass(frozen=True, kw_only=True)
class ConvolutionWork(ConvGeometry):
    """A convolution, with the type that it is multiplied in."""

    product_type: str
    """``tf32`` where tensor cores multiply float32, otherwise the type of its tensors."""

    @property
    def item_bytes(self) -> int:
        return TYPE_BYTES[self.dtype]

    @property
    def flops(self) -> float:
        """Of each of the three computations."""
        return 2.0 * math.prod(self.result) * self.weight[1] * self.taps

    @property
    def moved_bytes(self) -> int:
        """Each of the three computations reads two of these tensors and writes the third."""
        return sum(map(math.prod, (self.images, self.weight, self.result))) * self.item_bytes

    @property
    def pixels_in(self) -> int:
        """Of all images."""
        return math.prod(self.images) // self.inputs

    @property
    def pixels_out(self) -> int:
        return math.prod(self.result) // self.outputs

    def written_bytes(self, conv_pass: ConvPass) -> int:
        shapes = {ConvPass.FORWARD: self.result, ConvPass.IMAGES: self.images, ConvPass.WEIGHTS: self.weight}
        return math.prod(shapes[conv_pass]) * self.item_bytes


def work_of(call: Call, allow_tf32: bool) -> tuple[ConvolutionWork, tuple[ConvPass, ...]]:
    """What a call does, and which of the three computations it asks for."""
    tensors = [tensor for tensor in call.inputs if len(tensor.shape) > 2]
    is_backward = "backward" in call.name
    result, images, weight = tensors[:3] if is_backward else (call.outputs[0], *tensors[:2])
    channels_last = runs_channels_last(conv_tensor(images), conv_tensor(weight), images.dtype, len(images.shape))
    first = 4 if is_backward else 3  # strides, padding, dilation, transposed, padding of the result, groups
    asked = _argument(call, 10) if is_backward else None
    passes: tuple[ConvPass, ...] = (ConvPass.IMAGES, ConvPass.WEIGHTS) if is_backward else (ConvPass.FORWARD,)
    if isinstance(asked, tuple):
        passes = tuple(each for each, wanted in zip(passes, asked, strict=False) if wanted)
    if _argument(call, first + 3) is True:
        images, result = result, images
        passes = tuple(each.transposed() for each in passes)
    work = ConvolutionWork(
        images=images.shape,
        weight=weight.shape,
        result=result.shape,
        stride=_integers(call, first),
        padding=_integers(call, first + 1),
        dilation=_integers(call, first + 2),
        dtype=images.dtype,
        channels_last=channels_last,
        product_type="tf32" if images.dtype == "f32" and allow_tf32 else images.dtype,
    )
    return work, passes


def conv_tensor(tensor: Operand) -> ConvTensor:
    return ConvTensor.of(tensor.shape, tensor.stride, tensor.item_bytes)


def wants_bias(call: Call) -> bool:
    """Is a bias added, or its gradient wanted?"""
    if "backward" in call.name:
        asked = _argument(call, 10)
        return isinstance(asked, tuple) and len(asked) == 3 and asked[2] is True
    return len(call.arguments) > 2 and isinstance(call.arguments[2], Operand)


def _argument(call: Call, index: int) -> Argument:
    return call.arguments[index] if index < len(call.arguments) else None


def _integers(call: Call, index: int) -> tuple[int, ...]:
    found = _argument(call, index)
    return tuple(each for each in found if isinstance(each, int)) if isinstance(found, tuple) else ()
