"""Copies between host and device, and what the host itself computes."""

from __future__ import annotations

from typing import Final

from memfit.hardware import GIGA, Gpu
from memfit.timing.operators.calls import Call
from memfit.timing.operators.costs import Bound, Cost
from memfit.timing.rates import MICRO, Rates

UNTOUCHED: Final = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"))
"""Memory is taken and not written to: the system gives it when it is touched. Pinned memory is kept by torch, and used again."""


def price_transfer(call: Call, chip: Gpu, rates: Rates) -> Cost:
    """A copy from the host or to it."""
    own, size = rates.transfers, max((tensor.size_bytes for tensor in call.outputs), default=0)
    is_pinned = any(tensor.device_kind == "p" for tensor in (*call.inputs, *call.outputs))
    bandwidth = chip.host_bandwidth * own.pinned_share
    if not is_pinned and size > own.pageable_bytes:
        bandwidth = min(bandwidth, (own.pageable_from if call.outputs[0].device_kind else own.pageable_to) * GIGA)
    return Cost(call.operator, own.start_us * MICRO + size / bandwidth, Bound.LINK, moved_bytes=size)


def price_on_host(call: Call, rates: Rates) -> Cost:
    """An operator whose tensors are all on the host: the host itself takes this long."""
    if call.name in UNTOUCHED:
        return Cost(call.operator, 0.0, Bound.HOST, num_kernels=0)
    moved = sum(tensor.touched_bytes for tensor in (*call.inputs, *call.outputs))
    seconds = moved / (rates.transfers.host_bandwidth * GIGA)
    if not call.name.endswith("_"):
        new = sum(tensor.size_bytes for tensor in call.outputs if tensor.size_bytes > rates.transfers.new_memory_bytes)
        seconds = max(seconds, new / (rates.transfers.new_memory_bandwidth * GIGA))
    return Cost(call.operator, seconds, Bound.HOST, num_kernels=0, moved_bytes=moved)
