"""Seconds of a convolution: a product of unfolded images with the kernel, as cuDNN computes it without unfolding.

::

    channels first        images -> turned |
                          weight -> turned | product -> turned -> result
    channels last         the product alone
    kernels of one pixel  a product for each image, in the layout that there is

The product is that of matrices (``products.py``) with fewer of its peak, and with channels in whole chunks: for each pixel of the
kernel its channels are loaded in chunks, and a picture's three take as long as a chunk. Fitted to two thirds of
``benchmarks/truth/convolution_times.json.gz`` (an H200, cuDNN 9.19, without its search for the fastest kernel), and held against
the other third: ``benchmarks/timing/convolution_times.py`` shows how well.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from memfit.timing.chips import MICRO, Chip
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.elementwise import H200_F32, price_elementwise
from memfit.timing.operators.images.depthwise import depthwise_seconds
from memfit.timing.operators.images.work import Way, Work, wants_bias, work_of
from memfit.timing.operators.memory_bound import price_reduction
from memfit.timing.operators.products import product_cost

SHARES: Final = {
    "half": {Way.FORWARD: 0.80, Way.IMAGES: 0.76, Way.WEIGHTS: 0.80},
    "tf32": {Way.FORWARD: 0.75, Way.IMAGES: 0.71, Way.WEIGHTS: 0.47},
    "plain": {Way.FORWARD: 0.9, Way.IMAGES: 0.75, Way.WEIGHTS: 0.9},
}
"""Of the speed of a product with the same sizes."""

STRIDED_SHARE: Final = 0.8
"""Of that, where the gradient by images leaves out pixels."""

CHUNK: Final = {"half": 32, "tf32": 16, "plain": 1}
"""Channels that are loaded at once, for each pixel of the kernel."""

GROUP_CHUNK: Final = {"half": 64, "tf32": 32, "plain": 16}
"""The same in groups: as many groups as fit into it are multiplied as if they were one, with zeros between them."""

GROUPED_SHARES: Final = {
    "half": {Way.FORWARD: 0.54, Way.IMAGES: 0.52, Way.WEIGHTS: 0.66},
    "tf32": {Way.FORWARD: 0.48, Way.IMAGES: 0.37, Way.WEIGHTS: 0.25},
    "plain": {Way.FORWARD: 0.3, Way.IMAGES: 0.3, Way.WEIGHTS: 0.3},
}
"""As ``SHARES``, of what groups are multiplied as."""

POINTWISE_SHARES: Final = {
    "half": {Way.FORWARD: 1.0, Way.IMAGES: 1.0, Way.WEIGHTS: 0.95},
    "tf32": {Way.FORWARD: 1.0, Way.IMAGES: 0.72, Way.WEIGHTS: 0.5},
    "plain": {Way.FORWARD: 1.0, Way.IMAGES: 0.8, Way.WEIGHTS: 0.65},
}
"""As ``SHARES``, of kernels of one pixel."""

IMAGE_SHARES: Final = {
    "half": {Way.FORWARD: 1.0, Way.IMAGES: 1.0, Way.WEIGHTS: 0.9},
    "tf32": {Way.FORWARD: 0.6, Way.IMAGES: 0.55, Way.WEIGHTS: 0.5},
    "plain": {Way.FORWARD: 0.8, Way.IMAGES: 0.7, Way.WEIGHTS: 0.65},
}
"""The same where channels come first, with a product for each image."""

MISALIGNED_IMAGES: Final = {Way.FORWARD: (1, 1.0), Way.IMAGES: (2, 0.75)}
"""The same where images have a multiple of four pixels but not of eight, and channels two bytes: as products whose rows begin at
multiples of so many elements, and the share of those."""

FEW: Final = 8
DIRECT: Final = {Way.FORWARD: 14e12, Way.IMAGES: 15e12, Way.WEIGHTS: 9e12}
"""Operations a second of kernels without tensor cores that turn nothing: cuDNN takes them for fewer than eight channels if they are
faster."""

ALIGNED: Final = {"half": 8, "tf32": 4, "plain": 1}
"""Channels fill 16 bytes; others are filled up with zeros."""

FILLED_SHARE: Final = {Way.FORWARD: 0.75, Way.IMAGES: 1.0, Way.WEIGHTS: 0.45}
"""Of their share, what is left where channels are filled up: older kernels do it."""

REGROUPING: Final = (8 * MICRO, 110e9)
"""Where the channels of a group are filled up to a power of two: seconds, and elements a second of what is not turned anyway."""

LONGEST_SIDE: Final = 32
"""Kernels longer than this are not multiplied for many groups at once, but group by group, and none is cut along k."""

LONG_KERNELS: Final = {
    "half": {Way.FORWARD: 17e-9, Way.IMAGES: 45e-9},
    "tf32": {Way.FORWARD: 32e-9, Way.IMAGES: 20e-9},
    "plain": {Way.FORWARD: 32e-9, Way.IMAGES: 20e-9},
}
"""Seconds for each step along k of each group; between sizes they differ by a factor of two, back in two bytes of ten."""

LONG_ODD_KERNELS: Final = 170e-9
"""The same, forward, where a group's channels do not fill a chunk of 64 of two bytes each, as wav2vec 2.0's. Its kernels sum to
nearly twice as much, but groups overlap: its steps (``hf_wav2vec2`` in ``benchmarks/truth/step_times.json``) leave no more."""

FEW_PIXELS: Final = 2**13
MANY_PIXELS: Final = 2**14
"""Up to the first, cuDNN goes forward group by group where groups have about 64 channels of two bytes; back, beyond the second."""

SLICING_RATE: Final = 400e9
"""Elements a second that are cut out for a group, or put back, channels last."""

TURNING_START: Final = 1.6 * MICRO
TURNING_RATE: Final = 705e9
"""Elements a second, in tiles of 32 channels and 32 pixels: a kernel of three by three fills a third of each."""

TURNING_SHARE: Final = {2: 0.53, 4: 0.80}
"""Of the memory's bandwidth, by the bytes of an element."""

LONG_ASSUMPTION: Final = "the time of kernels of more than 32 pixels in groups of channels is an estimate: cuDNN has no fast one"


def price_convolution(call: Call, chip: Chip, allow_tf32: bool, is_sustained: bool = True) -> Cost:
    """``convolution`` and ``convolution_backward``."""
    work, ways = work_of(call, allow_tf32)
    seconds = sum(_seconds(work, way, chip, is_sustained) for way in ways)
    seconds += _copying_seconds(call, work, chip) + _bias_seconds(call, work, chip)
    kernels_each = 1 if work.is_depthwise or work.is_last or work.is_pointwise else 4
    flops, moved = work.flops * len(ways), float(work.moved_bytes * len(ways))
    peak = chip.tf32_flops if work.dtype == "tf32" else chip.product_flops(work.dtype)
    bound = Bound.ARITHMETIC if flops / peak > moved / chip.memory_bandwidth else Bound.MEMORY
    # Nothing that is fitted may beat the peaks.
    seconds = max(seconds, flops / peak, sum(work.result_of(way).size_bytes for way in ways) / chip.memory_bandwidth)
    return Cost(
        call.operator,
        seconds,
        bound,
        num_kernels=max(1, kernels_each * len(ways)),
        flops=flops,
        moved_bytes=moved,
        flops_type=work.dtype,
        assumption=LONG_ASSUMPTION if _is_long(work) else "",
    )


def _seconds(work: Work, way: Way, chip: Chip, is_sustained: bool) -> float:
    if work.is_depthwise:
        return depthwise_seconds(work, way, chip)
    if work.is_pointwise and work.groups == 1 and not work.is_last and _fits_images(work, way):
        return _product_for_each_image(work, way, chip, is_sustained)
    if _is_long(work) and way is not Way.WEIGHTS:
        return _long_kernel_seconds(work, way, chip)
    if _is_looped(work, way):
        slicing = (work.images.numel + work.result.numel) / (SLICING_RATE * chip.f32_flops / H200_F32) if work.is_last else 0.0
        return slicing + work.groups * _seconds(_one_group(work), way, chip, is_sustained)
    turned = _product_seconds(work, way, chip, is_sustained) + _turning_seconds(work, chip)
    if work.inputs < FEW and work.groups == 1 and (way is Way.FORWARD or _kind(work) != "half"):
        return min(turned, 2 * MICRO + work.flops / (DIRECT[way] * chip.f32_flops / H200_F32))
    return turned


def _is_long(work: Work) -> bool:
    return work.groups > 1 and not work.is_depthwise and max(work.weight.shape[2:]) > LONGEST_SIDE


def _kind(work: Work) -> str:
    """Which kernels multiply: of two bytes, of float32 on tensor cores, or without them."""
    return "half" if work.images.item_bytes == 2 else "tf32" if work.dtype == "tf32" else "plain"


def _product_seconds(work: Work, way: Way, chip: Chip, is_sustained: bool) -> float:
    """Channels last."""
    kind = _kind(work)
    pixels, inputs, outputs = work.result.numel // work.outputs, work.weight.shape[1], work.outputs // work.groups
    is_filled_up = inputs % ALIGNED[kind] != 0
    is_plain_product = work.is_pointwise and work.is_last and work.groups == 1
    if work.groups > 1:
        shares, chunk = GROUPED_SHARES[kind], GROUP_CHUNK[kind]
    else:
        shares, chunk = (POINTWISE_SHARES if is_plain_product else SHARES)[kind], 1 if is_plain_product else CHUNK[kind]
    share = shares[way] * (FILLED_SHARE[way] if is_filled_up and work.groups == 1 else 1.0)
    if way is Way.FORWARD:
        m, n, k = pixels, _wide(outputs, work.groups, chunk), _whole(inputs, chunk) * work.taps
    elif way is Way.IMAGES:
        # Of a kernel that leaves out pixels, each pixel of the images meets a part.
        m, n = work.images.numel // work.inputs, _wide(inputs, work.groups, chunk)
        k = max(1, _whole(outputs, chunk) * work.taps // work.steps)
        share *= STRIDED_SHARE if work.steps > 1 else 1.0
    else:
        m, n, k = (
            _wide(outputs, work.groups, chunk),
            _whole(inputs, chunk if work.groups > 1 else ALIGNED[kind]) * work.taps,
            pixels,
        )
    one = product_cost("", chip, work.dtype, 1, m, n, k, work.moved_bytes, is_sustained=is_sustained, share=share)
    return one.seconds + _filling_seconds(work, chip)


def _whole(channels: int, chunk: int) -> int:
    """Channels, in whole chunks."""
    return math.ceil(channels / chunk) * chunk


def _wide(channels: int, groups: int, chunk: int) -> int:
    """Channels of all groups: small groups share a chunk."""
    if groups == 1:
        return channels
    return _whole(groups * channels, chunk) if channels < chunk else groups * _whole(channels, chunk)


def _fits_images(work: Work, way: Way) -> bool:
    """Are rows that begin with each image aligned well enough for a product to be taken as it is?"""
    pixels, kind = math.prod(work.images.shape[2:]), _kind(work)
    return pixels == 1 or pixels % ALIGNED[kind] == 0 or (kind == "half" and pixels % 4 == 0 and way is not Way.WEIGHTS)


def _product_for_each_image(work: Work, way: Way, chip: Chip, is_sustained: bool) -> float:
    """Channels first, kernels of one pixel: rows are as long as an image has pixels."""
    pixels, kind, batch = math.prod(work.images.shape[2:]), _kind(work), work.batch
    if pixels == 1:  # all images are one matrix
        pixels, batch = batch, 1
    is_aligned = batch == 1 or pixels % ALIGNED[kind] == 0
    m, n, k = {
        Way.FORWARD: (pixels, work.outputs, work.inputs),
        Way.IMAGES: (pixels, work.inputs, work.outputs),
        Way.WEIGHTS: (work.outputs, work.inputs, pixels),
    }[way]
    alignment, share = (8, IMAGE_SHARES[kind][way]) if is_aligned else MISALIGNED_IMAGES[way]
    one = product_cost("", chip, work.dtype, batch, m, n, k, work.moved_bytes, alignment, is_sustained, share)
    added = 0.0
    if way is Way.WEIGHTS and batch > 1:  # the weights of each image, in float32, are added up
        added = 1.5 * MICRO + batch * work.weight.numel * 4 / (chip.memory_bandwidth * 0.6)
    return one.seconds + added


def _turning_seconds(work: Work, chip: Chip) -> float:
    """Channels first to channels last, of two tensors, and back, of one. A kernel of one pixel lies the same both ways."""
    if work.is_last:
        return 0.0
    tensors = [work.images, work.result] if work.taps == 1 else [work.images, work.result, work.weight]
    return sum(turning_of(tensor, chip) for tensor in tensors)


def turning_of(tensor: Operand, chip: Chip) -> float:
    """Seconds of one tensor."""
    pixels = math.prod(tensor.shape[2:])
    elements = tensor.shape[0] * _whole(tensor.shape[1], 32) * _whole(pixels, 32)
    at_memory = 2 * tensor.size_bytes / (chip.memory_bandwidth * TURNING_SHARE.get(tensor.item_bytes, 0.8))
    return TURNING_START + max(elements / (TURNING_RATE * chip.f32_flops / H200_F32), at_memory)


def _filling_seconds(work: Work, chip: Chip) -> float:
    """Channels that are filled up; where they come first, those of images are as they are turned."""
    speed = chip.f32_flops / H200_F32
    if work.groups > 1:
        width = work.weight.shape[1]
        filled = 1 << math.ceil(math.log2(width))
        if filled == width:
            return 0.0
        moved = [work.weight, work.images, work.result] if work.is_last else [work.weight]
        start, rate = REGROUPING
        return start + sum(tensor.numel for tensor in moved) * filled / width / (rate * speed)
    filled = _whole(work.inputs, ALIGNED[_kind(work)])
    if filled == work.inputs or not work.is_last:
        return 0.0
    return 2 * TURNING_START + work.images.numel // work.inputs * filled / (TURNING_RATE * speed)


def _is_looped(work: Work, way: Way) -> bool:
    """Does cuDNN take one group after the other? Measured with 56 and 64 channels of two bytes; with 48 and 112 it does not."""
    if _kind(work) != "half" or work.groups == 1 or not 48 < work.weight.shape[1] <= 64:
        return False
    if way is Way.FORWARD:
        return work.steps == 1 and work.result.numel // work.outputs <= FEW_PIXELS
    return way is Way.IMAGES and (work.steps > 1 or work.images.numel // work.inputs > MANY_PIXELS)


def _one_group(work: Work) -> Work:
    """A group, alone. How its tensors lie is known of the whole."""
    images, weight, result = (
        Operand(tensor.dtype, (*tensor.shape[:dim], tensor.shape[dim] // work.groups, *tensor.shape[dim + 1 :]))
        for tensor, dim in ((work.images, 1), (work.weight, 0), (work.result, 1))
    )
    return replace(work, images=images, weight=weight, result=result, groups=1)


def _long_kernel_seconds(work: Work, way: Way, chip: Chip) -> float:
    kind, width = _kind(work), work.weight.shape[1] if way is Way.FORWARD else work.outputs // work.groups
    is_odd = kind == "half" and way is Way.FORWARD and width % GROUP_CHUNK[kind] != 0
    per_step = LONG_ODD_KERNELS if is_odd else LONG_KERNELS[kind][way]
    return work.groups * width * work.taps * per_step * H200_F32 / chip.f32_flops


def _copying_seconds(call: Call, work: Work, chip: Chip) -> float:
    """Torch copies whatever does not lie as the images or the weights that decide."""
    seconds = 0.0
    for tensor in call.inputs:
        if len(tensor.shape) > 2 and not _lies_as(tensor, work.is_last):
            wanted = Operand(tensor.dtype, tensor.shape, _last_strides(tensor.shape) if work.is_last else None)
            seconds += price_elementwise(Call("clone", (tensor,), (wanted,)), chip).seconds
    return seconds


def _lies_as(tensor: Operand, is_last: bool) -> bool:
    pixels = math.prod(tensor.shape[2:])
    if tensor.shape[1] == 1 or pixels == 1:  # it lies both ways
        return tensor.is_dense
    return tensor.stride == _last_strides(tensor.shape) if is_last else tensor.stride is None


def _last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor whose channels are innermost."""
    steps, step = [0] * len(shape), shape[1]
    for dim in range(len(shape) - 1, 1, -1):
        steps[dim], step = step, step * shape[dim]
    steps[0], steps[1] = step, 1
    return tuple(steps)


def _bias_seconds(call: Call, work: Work, chip: Chip) -> float:
    """Torch adds a bias by a kernel of its own, and sums up its gradient by another; its kernels for single channels add it."""
    if not wants_bias(call):
        return 0.0
    if "backward" in call.name:
        gradient = call.inputs[0]
        dims = (0, *range(2, len(gradient.shape)))
        bias = Operand(gradient.dtype, (gradient.shape[1],))
        return price_reduction(Call("sum", (gradient, dims), (bias,)), chip).seconds
    if work.is_depthwise and not work.is_last:
        return 0.0
    result = call.outputs[0]
    bias = Operand(result.dtype, (1, result.shape[1], *(1 for _ in result.shape[2:])))
    return price_elementwise(Call("add", (result, bias), (result,)), chip).seconds
