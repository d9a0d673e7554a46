"""Copies between host and device, and what the host itself computes."""

from __future__ import annotations

from typing import Final

from memfit.timing.chips import GIGA, MICRO, Chip
from memfit.timing.operators.calls import Call
from memfit.timing.operators.costs import Bound, Cost

PINNED_SHARE: Final = 55.5 / 64
"""Of PCIe's line rate: 256 MiB in 4.83 milliseconds, either way."""

PAGEABLE: Final = {"to": 7.5 * GIGA, "from": 12.7 * GIGA}
"""Bytes a second of memory that is not pinned, above a megabyte: the host copies it first. To and from the device."""

HOST_BANDWIDTH: Final = 90 * GIGA
"""Bytes a second of operators on host tensors, by 16 cores, where the processor's caches cannot hold them: AdamW of ten parameters
of 2**22 elements takes 47 milliseconds for 3.4 gigabytes, fused 11.1 for 1.2 (``benchmarks/truth/host_times.json``). A copy of
64 MiB reached 160, and others 150 to 340 where their tensors were in a cache; an optimizer's are not."""

NEW_MEMORY_BANDWIDTH: Final = 10 * GIGA
"""Bytes a second of results in memory that the system gives anew, as it does above 32 MiB: a square root of 64 MiB takes 6.7
milliseconds."""

NEW_MEMORY_BYTES: Final = 32 * 2**20

UNTOUCHED: Final = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"))
"""Memory is taken and not written to: the system gives it when it is touched. Pinned memory is kept by torch, and used again."""


def price_transfer(call: Call, chip: Chip) -> Cost:
    """A copy from the host or to it."""
    size = max((tensor.size_bytes for tensor in call.outputs), default=0)
    to_device = not call.outputs[0].place
    is_pinned = any(tensor.place == "p" for tensor in (*call.inputs, *call.outputs))
    line = chip.host_bandwidth * PINNED_SHARE
    bandwidth = line if is_pinned or size <= 2**20 else min(line, PAGEABLE["to" if to_device else "from"])
    return Cost(call.operator, 1.5 * MICRO + size / bandwidth, Bound.LINK, moved_bytes=size)


def price_on_host(call: Call) -> Cost:
    """An operator whose tensors are all on the host: the host itself takes this long."""
    if call.name in UNTOUCHED:
        return Cost(call.operator, 0.0, Bound.HOST, num_kernels=0)
    moved = sum(tensor.touched_bytes for tensor in (*call.inputs, *call.outputs))
    seconds = moved / HOST_BANDWIDTH
    if not call.name.endswith("_"):
        new = sum(tensor.size_bytes for tensor in call.outputs if tensor.size_bytes > NEW_MEMORY_BYTES)
        seconds = max(seconds, new / NEW_MEMORY_BANDWIDTH)
    return Cost(call.operator, seconds, Bound.HOST, num_kernels=0, moved_bytes=moved)
