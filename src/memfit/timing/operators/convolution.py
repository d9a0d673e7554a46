"""Seconds of a convolution: a product of unfolded images with the kernel, as cuDNN computes it without unfolding.

Fitted to the family ``convolution`` of ``benchmarks/truth/operator_times.json`` (an H200, cuDNN 9.19, without its search for the
fastest kernel). Convolutions vary more than products do: half of the measured ones are within a quarter.
"""

from __future__ import annotations

import math
from typing import Final

from memfit.timing.chips import Chip
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.elementwise import H200_F32
from memfit.timing.operators.products import product_cost

MICRO: Final = 1e-6

SHARE: Final = 0.72
"""Of the speed of a product with the same arithmetic."""

POINTWISE_SHARE: Final = 0.75
"""The same, of kernels of one pixel."""

BACKWARD: Final = 1.3
"""So many times as long as its products alone: parts of it are added up."""

TURNING_SHARE: Final = 0.42
"""Of the memory's bandwidth, where images with channels first are turned to channels last, and back."""

LEAST_CHANNELS: Final = 8
"""Fewer channels than this are as slow as this many: a picture's three, for one."""

DEPTHWISE: Final = {
    (True, False): (10e12, 7.6e12),
    (True, True): (5.5e12, 1.5e12),
    (False, False): (2.4e12, 1.35e12),
    (False, True): (2.4e12, 1.35e12),
}
"""Operations a second, forward and backward, where every channel has its own kernel; by channels last and by float32."""

GROUPED: Final = (20e12, 6e12)
"""Operations a second, forward and backward, of a convolution in groups."""


def price_convolution(call: Call, chip: Chip, allow_tf32: bool) -> Cost:
    """``convolution`` and ``convolution_backward``."""
    is_backward = "backward" in call.name
    tensors = [tensor for tensor in call.inputs if len(tensor.shape) > 2]
    if is_backward:
        result, images, weight = tensors[:3]
        wanted = _wanted(call)
    else:
        (images, weight), result = tensors[:2], call.outputs[0]
        wanted = 1
    groups = max(1, images.shape[1] // weight.shape[1]) if images.shape[1] % max(1, weight.shape[1]) == 0 else 1
    taps = math.prod(weight.shape[2:])
    flops = 2.0 * result.numel * weight.shape[1] * taps
    moved = float(sum(tensor.size_bytes for tensor in (*tensors, *call.outputs)))
    dtype = "tf32" if images.dtype == "f32" and allow_tf32 else images.dtype
    is_last = images.stride is not None and images.stride[1] == 1
    if groups > 1:
        rate = _grouped_rate(images, weight, groups, is_last, is_backward) * chip.f32_flops / H200_F32
        seconds = 4 * MICRO + max(wanted * flops / rate, moved / (chip.memory_bandwidth * 0.7))
        return Cost(call.operator, seconds, Bound.ARITHMETIC, flops=wanted * flops, moved_bytes=moved, flops_type=dtype)
    m = result.numel // weight.shape[0]
    k = max(weight.shape[1], LEAST_CHANNELS) * taps
    alignment = 8 if is_last or taps > 1 or dtype not in ("bf16", "f16") else _alignment(math.prod(result.shape[2:]))
    one = product_cost(call.operator, chip, dtype, 1, m, weight.shape[0], k, moved / max(1, wanted), alignment)
    seconds = wanted * one.seconds / (SHARE if taps > 1 else POINTWISE_SHARE) * (BACKWARD if is_backward else 1.0)
    if taps > 1 and not is_last:
        seconds += wanted * (images.size_bytes + result.size_bytes) / (chip.memory_bandwidth * TURNING_SHARE)
    if weight.shape[1] < LEAST_CHANNELS:
        seconds *= 1.8  # measured with a picture's three channels: kernels for them are far from what the GPU can do
    return Cost(
        call.operator, seconds, one.bound, num_kernels=2 * wanted, flops=wanted * flops, moved_bytes=moved, flops_type=dtype
    )


def _alignment(size: int) -> int:
    return next(power for power in (8, 4, 2, 1) if size % power == 0)


def _wanted(call: Call) -> int:
    """How many of the gradients by images and by weights are asked for."""
    asked = next(
        (argument for argument in reversed(call.arguments) if isinstance(argument, tuple) and len(argument) == 3), (True, True)
    )
    return max(1, sum(bool(one) for one in asked[:2]))


def _grouped_rate(images: Operand, weight: Operand, groups: int, is_last: bool, is_backward: bool) -> float:
    if weight.shape[1] == 1:
        return DEPTHWISE[is_last, images.dtype == "f32"][is_backward]
    return GROUPED[is_backward]
