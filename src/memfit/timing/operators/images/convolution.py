"""Seconds of a convolution: a product of unfolded images with the kernel, as cuDNN computes it without unfolding.

::

    channels first        images -> turned |
                          weight -> turned | product -> turned -> result
    channels last         the product alone
    kernels of one pixel  a product for each image, in the layout that there is

The product is that of matrices (``products.py``) with fewer of its peak, and with channels in whole chunks: for each pixel of the
kernel its channels are loaded in chunks, and a picture's three take as long as a chunk.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from memfit.convolution import ConvPass, strides_of
from memfit.hardware import GIGA, TERA, Gpu
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.operators.elementwise import price_elementwise
from memfit.timing.operators.images.depthwise import depthwise_seconds, is_of_cudnn
from memfit.timing.operators.images.work import ConvolutionWork, conv_tensor, wants_bias, work_of
from memfit.timing.operators.memory_bound import price_reduction
from memfit.timing.operators.products import product_cost
from memfit.timing.rates import MICRO, ConvolutionKernels, Rates

TURNED_TILE: Final = 32
"""Channels, and pixels, of a tile in which a tensor is turned."""

LONG_ASSUMPTION: Final = "the time of kernels of more than 32 pixels in groups of channels is an estimate: cuDNN has no fast one"


def price_convolution(call: Call, chip: Gpu, rates: Rates, allow_tf32: bool, is_sustained: bool = True) -> Cost:
    """``convolution`` and ``convolution_backward``."""
    work, passes = work_of(call, allow_tf32)
    seconds = sum(_seconds(work, each, chip, rates, is_sustained) for each in passes)
    seconds += _copying_seconds(call, work, chip, rates) + _bias_seconds(call, work, chip, rates)
    kernels_each = 1 if work.is_depthwise or work.channels_last or work.is_pointwise else 4
    flops, moved = work.flops * len(passes), float(work.moved_bytes * len(passes))
    peak = chip.product_flops(work.product_type)
    bound = Bound.ARITHMETIC if flops / peak > moved / chip.memory_bandwidth else Bound.MEMORY
    # Nothing that is fitted may beat the peaks.
    seconds = max(seconds, flops / peak, sum(map(work.written_bytes, passes)) / chip.memory_bandwidth)
    return Cost(
        call.operator,
        seconds,
        bound,
        num_kernels=max(1, kernels_each * len(passes)),
        flops=flops,
        moved_bytes=moved,
        flops_type=work.product_type,
        assumption=LONG_ASSUMPTION if _is_long(work, rates) else "",
    )


def _seconds(work: ConvolutionWork, conv_pass: ConvPass, chip: Gpu, rates: Rates, is_sustained: bool) -> float:
    own = rates.convolution
    if work.is_depthwise:
        return depthwise_seconds(work, conv_pass, chip, rates)
    if work.is_pointwise and work.groups == 1 and not work.channels_last and _fits_images(work, conv_pass, rates):
        return _product_for_each_image(work, conv_pass, chip, rates, is_sustained)
    if _is_long(work, rates) and conv_pass is not ConvPass.WEIGHTS:
        return _long_kernel_seconds(work, conv_pass, chip, rates)
    if _is_looped(work, conv_pass, rates):
        sliced = math.prod(work.images) + math.prod(work.result) if work.channels_last else 0
        one_group = _seconds(_one_group(work), conv_pass, chip, rates, is_sustained)
        return sliced / (own.slicing * GIGA * chip.f32_flops / rates.f32_flops) + work.groups * one_group
    turned = _product_seconds(work, conv_pass, chip, rates, is_sustained) + _turning_seconds(work, chip, rates)
    if work.inputs < own.few_channels and work.groups == 1 and (conv_pass is ConvPass.FORWARD or _kind(work) != "half"):
        direct = own.direct_teraflops[conv_pass] * TERA * chip.f32_flops / rates.f32_flops
        return min(turned, own.direct_start_us * MICRO + work.flops / direct)
    return turned


def _is_long(work: ConvolutionWork, rates: Rates) -> bool:
    return work.groups > 1 and not work.is_depthwise and max(work.weight[2:]) > rates.convolution.longest_side


def _kind(work: ConvolutionWork) -> str:
    """Which kernels multiply: of two bytes, of float32 on tensor cores, or without them."""
    return "half" if work.item_bytes == 2 else "tf32" if work.product_type == "tf32" else "plain"


def _kernels(work: ConvolutionWork, rates: Rates) -> ConvolutionKernels:
    return rates.convolution.kernels[_kind(work)]


def _product_seconds(work: ConvolutionWork, conv_pass: ConvPass, chip: Gpu, rates: Rates, is_sustained: bool) -> float:
    """Channels last."""
    own, kernels, inputs, outputs = rates.convolution, _kernels(work, rates), work.weight[1], work.outputs // work.groups
    is_plain_product = work.is_pointwise and work.channels_last and work.groups == 1
    if work.groups > 1:
        shares, chunk = kernels.grouped_shares, kernels.group_chunk
    else:
        shares, chunk = (kernels.pointwise_shares, 1) if is_plain_product else (kernels.shares, kernels.chunk)
    is_filled_up = inputs % kernels.aligned != 0 and work.groups == 1
    share = shares[conv_pass] * (own.filled_share[conv_pass] if is_filled_up else 1.0)
    if conv_pass is ConvPass.FORWARD:
        m, n, k = work.pixels_out, _wide(outputs, work.groups, chunk), _whole(inputs, chunk) * work.taps
    elif conv_pass is ConvPass.IMAGES:
        # Of a kernel that leaves out pixels, each pixel of the images meets a part.
        m, n = work.pixels_in, _wide(inputs, work.groups, chunk)
        k = max(1, _whole(outputs, chunk) * work.taps // work.steps)
        share *= own.strided_share if work.steps > 1 else 1.0
    else:
        m, k = _wide(outputs, work.groups, chunk), work.pixels_out
        n = _whole(inputs, chunk if work.groups > 1 else kernels.aligned) * work.taps
    one = product_cost(
        "", chip, rates, work.product_type, 1, m, n, k, work.moved_bytes, is_sustained=is_sustained, share=share
    )  # fmt: skip
    return one.seconds + _filling_seconds(work, chip, rates)


def _whole(channels: int, chunk: int) -> int:
    """Channels, in whole chunks."""
    return math.ceil(channels / chunk) * chunk


def _wide(channels: int, groups: int, chunk: int) -> int:
    """Channels of all groups: small groups share a chunk."""
    if groups == 1:
        return channels
    return _whole(groups * channels, chunk) if channels < chunk else groups * _whole(channels, chunk)


def _fits_images(work: ConvolutionWork, conv_pass: ConvPass, rates: Rates) -> bool:
    """Are rows that begin with each image aligned well enough for a product to be taken as it is?"""
    pixels = math.prod(work.images[2:])
    is_nearly = _kind(work) == "half" and pixels % 4 == 0 and conv_pass is not ConvPass.WEIGHTS
    return pixels == 1 or pixels % _kernels(work, rates).aligned == 0 or is_nearly


def _product_for_each_image(work: ConvolutionWork, conv_pass: ConvPass, chip: Gpu, rates: Rates, is_sustained: bool) -> float:
    """Channels first, kernels of one pixel: rows are as long as an image has pixels."""
    own, kernels, pixels, batch = rates.convolution, _kernels(work, rates), math.prod(work.images[2:]), work.batch
    if pixels == 1:  # all images are one matrix
        pixels, batch = batch, 1
    is_aligned = batch == 1 or pixels % kernels.aligned == 0
    m, n, k = {
        ConvPass.FORWARD: (pixels, work.outputs, work.inputs),
        ConvPass.IMAGES: (pixels, work.inputs, work.outputs),
        ConvPass.WEIGHTS: (work.outputs, work.inputs, pixels),
    }[conv_pass]
    alignment, share = (8, kernels.image_shares[conv_pass]) if is_aligned else own.misaligned_images[conv_pass]
    one = product_cost("", chip, rates, work.product_type, batch, m, n, k, work.moved_bytes, alignment, is_sustained, share)
    added = 0.0
    if conv_pass is ConvPass.WEIGHTS and batch > 1:  # the weights of each image, in float32, are added up
        added = own.adding_us * MICRO + batch * math.prod(work.weight) * 4 / (chip.memory_bandwidth * own.adding_share)
    return one.seconds + added


def _turning_seconds(work: ConvolutionWork, chip: Gpu, rates: Rates) -> float:
    """Channels first to channels last, of two tensors, and back, of one. A kernel of one pixel lies the same both ways."""
    if work.channels_last:
        return 0.0
    shapes = [work.images, work.result] if work.taps == 1 else [work.images, work.result, work.weight]
    return sum(turning_seconds(shape, work.item_bytes, chip, rates) for shape in shapes)


def turning_seconds(shape: tuple[int, ...], item_bytes: int, chip: Gpu, rates: Rates) -> float:
    """Of one tensor whose channels become first or last."""
    own = rates.convolution
    elements = shape[0] * _whole(shape[1], TURNED_TILE) * _whole(math.prod(shape[2:]), TURNED_TILE)
    share = own.turning_share.get(str(item_bytes), own.turning_share["4"])
    at_memory = 2 * math.prod(shape) * item_bytes / (chip.memory_bandwidth * share)
    return own.turning_us * MICRO + max(elements / (own.turning * GIGA * chip.f32_flops / rates.f32_flops), at_memory)


def _filling_seconds(work: ConvolutionWork, chip: Gpu, rates: Rates) -> float:
    """Channels that are filled up; where they come first, those of images are as they are turned."""
    own, speed = rates.convolution, chip.f32_flops / rates.f32_flops
    if work.groups > 1:
        width = work.weight[1]
        filled = 1 << math.ceil(math.log2(width))
        if filled == width:
            return 0.0
        moved = [work.weight, work.images, work.result] if work.channels_last else [work.weight]
        elements = sum(map(math.prod, moved)) * filled / width
        return own.regrouping_us * MICRO + elements / (own.regrouping_rate * GIGA * speed)
    filled = _whole(work.inputs, _kernels(work, rates).aligned)
    if filled == work.inputs or not work.channels_last:
        return 0.0
    return 2 * (own.turning_us * MICRO) + work.pixels_in * filled / (own.turning * GIGA * speed)


def _is_looped(work: ConvolutionWork, conv_pass: ConvPass, rates: Rates) -> bool:
    """Does cuDNN take one group after the other?"""
    own = rates.convolution
    more_than, most = own.looped_channels
    if _kind(work) != "half" or work.groups == 1 or not more_than < work.weight[1] <= most:
        return False
    if conv_pass is ConvPass.FORWARD:
        return work.steps == 1 and work.pixels_out <= own.few_pixels
    return conv_pass is ConvPass.IMAGES and (work.steps > 1 or work.pixels_in > own.many_pixels)


def _one_group(work: ConvolutionWork) -> ConvolutionWork:
    """A group, alone."""
    images, weight, result = (
        (*shape[:dim], shape[dim] // work.groups, *shape[dim + 1 :])
        for shape, dim in ((work.images, 1), (work.weight, 0), (work.result, 1))
    )
    return replace(work, images=images, weight=weight, result=result)


def _long_kernel_seconds(work: ConvolutionWork, conv_pass: ConvPass, chip: Gpu, rates: Rates) -> float:
    is_forward, kernels = conv_pass is ConvPass.FORWARD, _kernels(work, rates)
    width = work.weight[1] if is_forward else work.outputs // work.groups
    is_odd = _kind(work) == "half" and is_forward and width % kernels.group_chunk != 0
    per_step = rates.convolution.long_odd if is_odd else kernels.long[conv_pass]
    return work.groups * width * work.taps * per_step * rates.f32_flops / chip.f32_flops


def _copying_seconds(call: Call, work: ConvolutionWork, chip: Gpu, rates: Rates) -> float:
    """Torch copies whatever does not lie as the images or the weights that decide."""
    seconds = 0.0
    for tensor in call.inputs:
        if len(tensor.shape) > 2 and not conv_tensor(tensor).lies(work.channels_last):
            wanted = tuple(strides_of(tensor.shape, channels_last=True)) if work.channels_last else None
            copy = Operand(tensor.dtype, tensor.shape, wanted)
            seconds += price_elementwise(Call("clone", (tensor,), (copy,)), chip, rates).seconds
    return seconds


def _bias_seconds(call: Call, work: ConvolutionWork, chip: Gpu, rates: Rates) -> float:
    """Torch adds a bias by a kernel of its own, and sums up its gradient by another; its kernels for single channels add it."""
    if not wants_bias(call):
        return 0.0
    if "backward" in call.name:
        gradient = call.inputs[0]
        dims = (0, *range(2, len(gradient.shape)))
        bias = Operand(gradient.dtype, (gradient.shape[1],))
        return price_reduction(Call("sum", (gradient, dims), (bias,)), chip, rates).seconds
    if work.is_depthwise and not is_of_cudnn(work):
        return 0.0
    result = call.outputs[0]
    bias = Operand(result.dtype, (1, result.shape[1], *(1 for _ in result.shape[2:])))
    return price_elementwise(Call("add", (result, bias), (result,)), chip, rates).seconds
