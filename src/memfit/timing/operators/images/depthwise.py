"""Seconds of a convolution in which every channel has a kernel of its own: no tensor core has anything to do.

With channels first, torch's own kernels do it: one thread for an element of the result, and for the gradient of the weights one
group of threads for each of them. With channels last it is cuDNN's. All are bound by how many pixels of kernels they multiply,
few of them by memory. Fitted to the depthwise convolutions of ``benchmarks/truth/convolution_times.json.gz`` (an H200).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from memfit.timing.chips import MICRO, PICO, Chip
from memfit.timing.operators.elementwise import H200_F32
from memfit.timing.operators.images.work import Way, Work


@dataclass(frozen=True)
class Rate:
    """What an element of the result costs."""

    start: float
    """Microseconds."""
    per_element: float
    """Picoseconds."""
    per_tap: float
    """Picoseconds for each pixel of the kernel."""
    memory_share: float
    """Of the memory's bandwidth, at most."""


FIRST: Final = {Way.FORWARD: Rate(1.7, 5.7, 0.5, 0.4), Way.IMAGES: Rate(1.6, 10.6, 0.56, 0.4)}
"""Torch's kernels, channels first; of whatever type."""

LAST: Final = {
    (Way.FORWARD, True): Rate(3.8, 0.0, 0.22, 0.55),
    (Way.IMAGES, True): Rate(2.6, 0.1, 0.34, 0.42),
    (Way.WEIGHTS, True): Rate(5.5, 0.0, 0.13, 0.35),
    (Way.FORWARD, False): Rate(2.1, 0.0, 0.34, 0.79),
    (Way.IMAGES, False): Rate(1.5, 0.8, 0.36, 0.42),
}
"""cuDNN's, channels last; by whether an element has two bytes."""

WEIGHTS_OF_F32: Final = ((9, 0.44), (25, 2.2), (math.inf, 5.6))
"""Picoseconds of an element and pixel, up to so many pixels: the gradient by weights in float32, channels last. cuDNN has a kernel
for three by three, a slow one for five by five, and takes one made for groups of channels beyond that."""

WARP: Final = 32
WARPS_IN_GROUP: Final = 8
WARP_STEPS: Final = 22.4e9
"""Steps of a warp a second, of torch's gradient by weights: up to eight warps for each weight, each warp for an image at a time."""

STEPS_OF_IMAGE: Final = 2.35
"""So many steps more than it has pixels for takes an image."""

ENOUGH_WARPS: Final = 24
"""On a multiprocessor; with fewer it waits for memory."""


def depthwise_seconds(work: Work, way: Way, chip: Chip) -> float:
    """Of one of the three computations."""
    speed = chip.f32_flops / H200_F32
    if way is Way.WEIGHTS and not work.is_last:
        return _weights_first(work, chip) / speed
    elements = work.images.numel if way is Way.IMAGES else work.result.numel
    is_short = work.images.item_bytes == 2
    if work.is_last and way is Way.WEIGHTS and not is_short:
        per_tap = next(each for most, each in WEIGHTS_OF_F32 if work.taps <= most)
        rate = Rate(5.0, 0.0, per_tap, 0.37)
    else:
        rate = LAST[way, is_short] if work.is_last else FIRST[way]
    at_arithmetic = elements * (rate.per_element + rate.per_tap * work.taps) * PICO / speed
    return rate.start * MICRO + max(at_arithmetic, work.moved_bytes / (chip.memory_bandwidth * rate.memory_share))


def _weights_first(work: Work, chip: Chip) -> float:
    pixels = math.prod(work.result.shape[2:])
    steps = work.weight.numel * work.batch * (math.ceil(pixels / WARP) + STEPS_OF_IMAGE)
    warps = work.weight.numel * min(work.batch, WARPS_IN_GROUP) / chip.num_sms
    return 7.4 * MICRO + steps / (WARP_STEPS * min(1.0, warps / ENOUGH_WARPS))
