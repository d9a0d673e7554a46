"""Seconds of a convolution in which every channel has a kernel of its own: no tensor core has anything to do.

With channels first, torch's own kernels do it: one thread for an element of the result, and for the gradient of the weights one
group of threads for each of them. With channels last it is cuDNN's, and for most of float16 with channels first, which was not
timed: as with channels last. All are bound by how many pixels of kernels they multiply, few of them by memory.
"""

from __future__ import annotations

import math
from typing import Final

from memfit.convolution import ConvPass
from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.images.work import ConvolutionWork
from memfit.timing.rates import MICRO, PICO, DepthwiseKernel, Rates

WARP: Final = 32

CUDNN_SIDES: Final = (1, 3, 5)
CUDNN_CHANNELS: Final = 32
CUDNN_WIDTH: Final = 7


def depthwise_seconds(work: ConvolutionWork, conv_pass: ConvPass, chip: Gpu, rates: Rates) -> float:
    """Of one of the three computations."""
    speed = chip.f32_flops / rates.f32_flops
    if conv_pass is ConvPass.WEIGHTS and not is_of_cudnn(work):
        return _weights_first(work, chip, rates) / speed
    elements = math.prod(work.images if conv_pass is ConvPass.IMAGES else work.result)
    kernel = _kernel(work, conv_pass, rates)
    at_arithmetic = elements * (kernel.per_element_ps + kernel.per_tap_ps * work.taps) * PICO / speed
    return kernel.start_us * MICRO + max(at_arithmetic, work.moved_bytes / (chip.memory_bandwidth * kernel.memory_share))


def is_of_cudnn(work: ConvolutionWork) -> bool:
    """Whether torch leaves it to cuDNN: ``use_cudnn_depthwise`` in ATen/native/Convolution.cpp."""
    if work.channels_last:
        return True
    sides, steps = work.weight[2:], work.stride
    is_simple = len(sides) == 2 and sides[0] == sides[1] in CUDNN_SIDES and steps[0] == steps[1] and set(work.dilation) == {1}
    channels, width = work.images[1], work.images[3] if len(work.images) > 3 else 0
    if work.dtype != "f16" or not is_simple or channels < CUDNN_CHANNELS or width < CUDNN_WIDTH:
        return False
    if steps[0] == 1:
        return True
    is_large = channels >= 512 or (channels >= 256 and width >= 28)
    return steps[0] == 2 and sides[0] > 1 and (is_large or work.batch == 1)


def _kernel(work: ConvolutionWork, conv_pass: ConvPass, rates: Rates) -> DepthwiseKernel:
    own, is_half = rates.depthwise, work.item_bytes == 2
    if not is_of_cudnn(work):
        return own.first[conv_pass]
    if conv_pass is not ConvPass.WEIGHTS or is_half:
        return (own.last_half if is_half else own.last)[conv_pass]
    return next(kernel for kernel in own.last_weights if work.taps <= kernel.most_taps)


def _weights_first(work: ConvolutionWork, chip: Gpu, rates: Rates) -> float:
    own, num_weights = rates.depthwise, math.prod(work.weight)
    steps = num_weights * work.batch * (math.ceil(math.prod(work.result[2:]) / WARP) + own.steps_of_image)
    warps = num_weights * min(work.batch, own.warps_of_group) / chip.num_sms
    return own.first_weights_start_us * MICRO + steps / (own.warp_steps * GIGA * min(1.0, warps / own.enough_warps))
