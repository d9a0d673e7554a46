"""What stands around convolutions: norms over channels, pooling, resizing.

Most of these kernels are bound neither by bytes nor by arithmetic, but by how their threads are laid out: a group of them for each
channel, or one thread for each place in the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from memfit.timing.chips import GIGA, MICRO, PICO, Chip
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.operators.elementwise import H200_F32
from memfit.timing.operators.memory_bound import memory_cost, price_row, read_and_written

# -- batch norm --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChannelGroups:
    """How a kernel goes through images with channels first: a group of threads for each channel."""

    rate: float
    """Billions of elements a second of one group that has its multiprocessor to itself."""
    sharing: float
    """So much longer, of one, for each group more on the same multiprocessor."""
    start: float
    """Microseconds for each wave of groups, four on a multiprocessor."""
    planes: float
    """Billions of planes, channels of one image, a second at most: small ones leave threads without work."""
    threads: int = 1
    """So many go through a plane together, or the next power of two where it is smaller; some have no pixel left at its end."""

    def seconds(self, given: Operand, chip: Chip) -> float:
        channels = given.shape[1]
        on_one = math.ceil(channels / chip.num_sms)
        waves = math.ceil(channels / (4 * chip.num_sms))
        pixels = math.prod(given.shape[2:])
        together = min(self.threads, 1 << max(0, pixels - 1).bit_length())
        places = given.shape[0] * math.ceil(pixels / together) * together
        each = places / (self.rate * GIGA) * (1 + self.sharing * (on_one - 1))
        return waves * self.start * MICRO + max(each, given.shape[0] * channels / (self.planes * GIGA))


BATCH_NORM: Final = {
    (True, False): ChannelGroups(1.9, 1.0, 1.0, 2.4),
    (True, True): ChannelGroups(0.68, 0.36, 1.0, 2.2),
    (False, False): ChannelGroups(1.2, 0.05, 4.0, math.inf, threads=512),
    (False, True): ChannelGroups(0.585, 0.15, 3.0, math.inf, threads=512),
}
"""By cuDNN's or torch's, and by backward. Of torch's forward it is the statistics alone."""

TORCH_NORMALIZING: Final = (460.0, 1.6)
"""Torch's forward after its statistics: billions of elements, and of planes, a second."""


def price_batch_norm(call: Call, chip: Chip) -> Cost:
    """Channels are the work of one group each where they come first, and there may be fewer than the GPU has multiprocessors."""
    given = call.inputs[0]
    is_last = given.stride is not None and len(given.shape) > 2 and given.stride[1] == 1
    # Torch leaves all but bfloat16 to cuDNN; a prediction calls it by torch's name all the same.
    is_backward, is_cudnn = "backward" in call.name, given.dtype != "bf16"
    moved = read_and_written(call)
    if is_last or len(given.shape) < 2 or not given.numel:
        bandwidth, start = (2100.0, 4 * MICRO) if is_cudnn else (1400.0, 7 * MICRO) if is_backward else (850.0, 12 * MICRO)
        return memory_cost(call, chip, start, moved, bandwidth, num_kernels=2)
    speed = chip.f32_flops / H200_F32
    seconds = MICRO + BATCH_NORM[is_cudnn, is_backward].seconds(given, chip) / speed
    if not is_cudnn and not is_backward:
        elements, planes = TORCH_NORMALIZING
        seconds += max(given.numel / (elements * GIGA), given.shape[0] * given.shape[1] / (planes * GIGA)) / speed + 2 * MICRO
    at_memory = moved / (chip.memory_bandwidth * 0.9)
    return Cost(call.operator, max(seconds, at_memory), Bound.MEMORY, num_kernels=1 if is_cudnn else 2, moved_bytes=moved)


GROUP_STATISTICS: Final = 1.25
"""Billions of elements a second, of the threads that have one image's group of channels."""


def price_group_norm(call: Call, chip: Chip) -> Cost:
    """``native_group_norm``: statistics of each group of channels of each image, then one pass over all. Few and large groups leave
    multiprocessors without work."""
    row = price_row(call, chip)
    given, groups = call.inputs[0], call.arguments[6] if len(call.arguments) > 6 else 1
    if not isinstance(groups, int) or not given.numel:
        return row
    each = given.numel / (given.shape[0] * groups) / (GROUP_STATISTICS * GIGA)
    seconds = 4 * MICRO + (each + given.numel / (400 * GIGA)) * H200_F32 / chip.f32_flops
    return replace(row, seconds=max(row.seconds, seconds))


# -- pooling and resizing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Picoseconds for each place of the larger of a gradient and a result, channels first and last."""

    first: float
    last: float
    per_window: float = 0.0
    """More for each pixel of a window; backward, for each window that a place is in."""
    of_half: tuple[float, float] = (1.0, 1.0)
    """So many times as long in types of two bytes, whose sums are added up one at a time; channels first and last."""


PLACES: Final = {
    "max_pool2d_with_indices": Places(9.5, 11.0, 0.73),
    "max_pool2d_with_indices_backward": Places(10.0, 7.0, 0.7),
    "avg_pool2d": Places(12.4, 24.0),
    "avg_pool2d_backward": Places(16.0, 16.0, 1.6),
    "_adaptive_avg_pool2d": Places(88.0, 150.0),
    "_adaptive_avg_pool2d_backward": Places(12.0, 7.0, of_half=(1.9, 1.0)),
    "upsample_nearest2d": Places(2.7, 6.4),
    "upsample_nearest2d_backward": Places(2.2, 3.4),
    "upsample_bilinear2d": Places(6.0, 9.3),
    "upsample_bilinear2d_backward": Places(9.0, 9.0, of_half=(2.15, 1.4)),
}

BILINEAR_PLANE: Final = 0.375 * MICRO
"""Seconds of a plane, channels first: a thread for each pixel goes through the channels of all images, one after the other."""


def price_places(call: Call, chip: Chip) -> Cost:
    """Pooling and resizing: one thread for each place."""
    given, result = call.inputs[0], call.outputs[0]
    is_last = given.stride is not None and len(given.shape) > 2 and given.stride[1] == 1
    is_backward = call.name.endswith("backward")
    rates, speed = PLACES[call.name], chip.f32_flops / H200_F32
    is_resized = call.name.startswith("upsample")
    places = max(given.numel, result.numel) if is_backward or is_resized else result.numel
    window = next((argument for argument in call.arguments if isinstance(argument, tuple)), ())
    sides = (result if is_backward else given).shape[2:]
    pixels = (
        0.0
        if is_resized
        else float(math.prod(min(size, side) for size, side in zip(window, sides, strict=False) if isinstance(size, int)))
    )
    if is_backward:
        pixels = min(pixels, pixels * given.numel / max(1, result.numel))
    each = (rates.last if is_last else rates.first) + rates.per_window * pixels
    seconds = places * each * PICO * (rates.of_half[is_last] if given.item_bytes == 2 else 1.0)
    if call.name == "upsample_bilinear2d" and not is_last:
        seconds = max(seconds, BILINEAR_PLANE * math.prod(given.shape[:2]))
    moved = read_and_written(call)
    seconds = 2 * MICRO + max(seconds / speed, moved / (chip.memory_bandwidth * 0.9))
    return Cost(call.operator, seconds, Bound.ARITHMETIC, num_kernels=2 if is_backward else 1, moved_bytes=moved)
