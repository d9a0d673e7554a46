"""What is known when memory runs out: what the error says, and what the device says of itself.

::

    CUDA out of memory. Tried to allocate 1.37 GiB. GPU 0 has a total capacity of 39.49 GiB of which 1.02 GiB is free. [...]
    [32.00 GiB allowed;] Of the allocated memory 36.40 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but [...]

The message has the figures of the moment, to two digits. The device is asked on the way out, when some of it may have been freed;
but what the allocator holds and what is free add up to the same, to the byte.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import torch

from memfit.ledger import Failure
from memfit.units import UNIT_BYTES

_AMOUNT: Final = r"(?P<number>[\d.]+) (?P<unit>bytes|[KMGT]iB)"
_FIGURES: Final = {
    "needed_bytes": rf"Tried to allocate {_AMOUNT}",
    "total_bytes": rf"total capacity of {_AMOUNT}",
    "free_bytes": rf"of which {_AMOUNT} is free",
    "limit_bytes": rf"{_AMOUNT} allowed;",
    "allocated_bytes": rf"{_AMOUNT} is allocated by PyTorch",
}
_UNALLOCATED: Final = rf"{_AMOUNT} is reserved by PyTorch but unallocated"


def describe_failure(error: torch.OutOfMemoryError, time_ns: int, op: str) -> Failure:
    """All that can be known of an out-of-memory error by now."""
    known = replace(read_message(str(error)), time_ns=time_ns, op=op)
    return replace(known, **_ask_device(known)) if known.device and torch.cuda.is_initialized() else known


def read_message(message: str) -> Failure:
    """The figures in an error's message."""
    found: dict[str, Any] = {name: _amount(pattern, message) for name, pattern in _FIGURES.items()}
    unallocated = _amount(_UNALLOCATED, message)
    if found["allocated_bytes"] is not None and unallocated is not None:
        found["reserved_bytes"] = found["allocated_bytes"] + unallocated
    number = re.search(r"GPU (\d+) has", message)
    return Failure(message=message or "out of memory", device=f"cuda:{number[1]}" if number else "", **found)


def _amount(pattern: str, message: str) -> int | None:
    match = re.search(pattern, message)
    if match is None:
        return None
    return round(float(match["number"]) * (1 if match["unit"] == "bytes" else UNIT_BYTES[match["unit"]]))


def _ask_device(failure: Failure) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(failure.device)
    figures = {"free_bytes": free, "total_bytes": total, "reserved_bytes": torch.cuda.memory_reserved(failure.device)}
    if failure.limit_bytes is not None:
        figures["limit_bytes"] = int(torch.cuda.get_per_process_memory_fraction(failure.device) * total)
    return figures
