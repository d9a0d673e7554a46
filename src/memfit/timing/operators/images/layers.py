"""What stands around convolutions: norms over channels, pooling, resizing.

Most of these kernels are bound neither by bytes nor by arithmetic, but by how their threads are laid out: a group of them for each
channel, or one thread for each place in the result.
"""

from __future__ import annotations

import math
from dataclasses import replace

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Bound, Call, Cost, Operand
from memfit.timing.operators.memory_bound import price_row, read_and_written, row_cost
from memfit.timing.rates import MICRO, PICO, ChannelGroups, Rates


def _is_last(given: Operand) -> bool:
    """Whether a kernel finds channels innermost. Unlike a convolution, it does not ask how the other dimensions lie."""
    return given.stride is not None and len(given.shape) > 2 and given.stride[1] == 1


# -- norms -------------------------------------------------------------------------------------------------------------------------


def price_batch_norm(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """Channels are the work of one group each where they come first, and there may be fewer than the GPU has multiprocessors."""
    given, own = call.inputs[0], rates.batch_norm
    # Torch leaves all but bfloat16 to cuDNN; a prediction calls it by torch's name all the same.
    is_backward, is_cudnn = "backward" in call.name, given.dtype != "bf16"
    # Of two dimensions channels are innermost. Which kernel cuDNN has for these was not measured.
    if _is_last(given) or len(given.shape) <= 2 or not given.numel:
        last = own.cudnn_last if is_cudnn else own.torch_last_backward if is_backward else own.torch_last
        return row_cost(call, chip, rates, last)
    speed = chip.f32_flops / rates.f32_flops
    groups = own.groups[("cudnn" if is_cudnn else "torch") + ("_backward" if is_backward else "")]
    seconds = own.start_us * MICRO + _group_seconds(groups, given, chip) / speed
    if not is_cudnn and not is_backward:
        planes = given.shape[0] * given.shape[1]
        each = max(given.numel / (own.normalizing_rate * GIGA), planes / (own.normalizing_planes * GIGA))
        seconds += each / speed + own.normalizing_us * MICRO
    moved = read_and_written(call)
    at_memory = moved / (chip.memory_bandwidth * own.memory_share)
    return Cost(call.operator, max(seconds, at_memory), Bound.MEMORY, num_kernels=1 if is_cudnn else 2, moved_bytes=moved)


def _group_seconds(groups: ChannelGroups, given: Operand, chip: Gpu) -> float:
    channels = given.shape[1]
    on_one = math.ceil(channels / chip.num_sms)
    waves = math.ceil(channels / (4 * chip.num_sms))
    pixels = math.prod(given.shape[2:])
    together = min(groups.threads, 1 << max(0, pixels - 1).bit_length())
    places = given.shape[0] * math.ceil(pixels / together) * together
    each = places / (groups.rate * GIGA) * (1 + groups.sharing * (on_one - 1))
    return waves * groups.start_us * MICRO + max(each, given.shape[0] * channels / (groups.planes * GIGA))


def price_group_norm(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """``native_group_norm``: statistics of each group of channels of each image, then one pass over all. Few and large groups leave
    multiprocessors without work."""
    row, own = price_row(call, chip, rates), rates.group_norm
    given, groups = call.inputs[0], call.arguments[6] if len(call.arguments) > 6 else 1
    if not isinstance(groups, int) or not given.numel:
        return row
    each = given.numel / (given.shape[0] * groups) / (own.statistics * GIGA)
    seconds = own.start_us * MICRO + (each + given.numel / (own.rate * GIGA)) * rates.f32_flops / chip.f32_flops
    return replace(row, seconds=max(row.seconds, seconds))


# -- pooling and resizing ----------------------------------------------------------------------------------------------------------


def _added_back_seconds(call: Call, given: Operand, result: Operand, rates: Rates) -> float:
    """The gradient of resizing: each place is added to its neighbours in the smaller image, where additions to one place wait for
    each other; without neighbours, one thread adds up all that came from its place."""
    own, is_half = rates.places, given.item_bytes == 2
    repeated = max(1.0, given.numel / max(1, result.numel))
    if call.name not in own.atomics:
        return repeated * own.serial_us * MICRO
    rate = min(own.atomic_rate[is_half], own.repeated_atomic_rate[is_half] / repeated)
    return given.numel * own.atomics[call.name] / (rate * GIGA)


def price_places(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """Pooling and resizing: one thread for each place."""
    given, result, own = call.inputs[0], call.outputs[0], rates.places
    is_last, is_backward = _is_last(given), call.name.endswith("backward")
    rate, speed = own.operators[call.name], chip.f32_flops / rates.f32_flops
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
    each = rate.per_place_ps[is_last] + rate.per_window_ps * pixels
    seconds = places * each * PICO * (rate.of_half[is_last] if given.item_bytes == 2 else 1.0)
    if call.name in own.plane_us and not is_last:
        seconds = max(seconds, own.plane_us[call.name] * MICRO * math.prod(given.shape[:2]))
    if is_resized and is_backward:
        seconds = max(seconds, _added_back_seconds(call, given, result, rates))
    moved = read_and_written(call)
    seconds = own.start_us * MICRO + max(seconds / speed, moved / (chip.memory_bandwidth * own.memory_share))
    return Cost(call.operator, seconds, Bound.ARITHMETIC, num_kernels=2 if is_backward else 1, moved_bytes=moved)
