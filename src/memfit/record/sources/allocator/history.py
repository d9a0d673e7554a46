"""Where the history comes from: CUDA's allocator, or anything that keeps one like it.

A reading has torch's own form, that of ``torch.cuda.memory._snapshot()``: segments with their blocks, and for each device a list of
entries ``action, addr, size, stream, time_us, user_metadata``, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from memfit.errors import ConfigError
from memfit.torch_compat import memory_history

MOST_ENTRIES = 1_000_000
"""What the allocator keeps at most between two readings."""


class DeviceFigures(NamedTuple):
    """A device, as its allocator counts it."""

    allocated: int
    peak: int
    """The highest since the program last had it forgotten."""
    reserved: int
    active: int
    inactive_split: int
    num_entries: int
    """About how many entries the history has had since the program began."""
    num_requests: int
    """Exactly how many blocks have been asked for since the program began."""


class Reading(NamedTuple):
    """Everything since the history began, and what is there now."""

    segments: list[dict[str, Any]]
    traces: list[list[dict[str, Any]]]
    """By device."""


class AllocatorHistory(Protocol):
    """What a recording needs of an allocator."""

    device_type: str
    """Of tensors that it holds."""
    set_note: Callable[[str], None] | None
    """Attaches a note to the entries from now on; ``None`` where only the clock can tell what happened when."""

    def start(self, *, with_stacks: bool = False) -> None:
        """Keeps a history from now on, and forgets what there was of it."""

    def read(self) -> Reading:
        """What happened since ``start``, and what is there now."""

    def stop(self) -> None: ...

    def num_devices(self) -> int: ...

    def device_name(self, device: int) -> str:
        """As torch writes it."""

    def figures(self, device: int) -> DeviceFigures: ...

    def capacity(self, device: int) -> int:
        """The bytes that a device has."""


class CudaHistory:
    """The history of CUDA's caching allocator. It costs C++ for each block, and no Python."""

    device_type = "cuda"

    def __init__(self) -> None:
        self.set_note = memory_history.note_setter()
        self._note_before: str | None = None
        self._capacities: dict[int, int] = {}

    def start(self, *, with_stacks: bool = False) -> None:
        torch.cuda.init()
        if self._note_before is None:
            if memory_history.is_kept_by_somebody():
                raise ConfigError(
                    "the allocator's history is being kept by somebody else: end that first, or use witness='operators'"
                )
            self._note_before = memory_history.current_note()
        memory_history.begin(MOST_ENTRIES, with_stacks=with_stacks)

    def read(self) -> Reading:
        found = memory_history.snapshot()
        return Reading(found["segments"], found["device_traces"])

    def stop(self) -> None:
        memory_history.end()
        if self.set_note is not None and self._note_before is not None:
            self.set_note(self._note_before)
            self._note_before = None

    def num_devices(self) -> int:
        return torch.cuda.device_count()

    def device_name(self, device: int) -> str:
        return f"cuda:{device}"

    def figures(self, device: int) -> DeviceFigures:
        found = memory_history.statistics(device)
        if not found:  # a device that was never used
            return DeviceFigures(0, 0, 0, 0, 0, 0, 0)
        blocks, segments, allocated = found["allocation"]["all"], found["segment"]["all"], found["allocated_bytes"]["all"]
        return DeviceFigures(
            allocated=allocated["current"],
            peak=allocated["peak"],
            reserved=found["reserved_bytes"]["all"]["current"],
            active=found["active_bytes"]["all"]["current"],
            inactive_split=found["inactive_split_bytes"]["all"]["current"],
            num_entries=blocks["allocated"] + 2 * blocks["freed"] + segments["allocated"] + segments["freed"],
            num_requests=blocks["allocated"],
        )

    def capacity(self, device: int) -> int:
        if device not in self._capacities:
            self._capacities[device] = int(torch.cuda.get_device_properties(device).total_memory)
        return self._capacities[device]
