"""An allocator that keeps a history as CUDA's does, for tensors on the CPU: without a GPU, all else is as it will be there.

A dispatch mode of its own sees storages come, and weak references see them go. Addresses in the history are those of the tensors,
so that they can be found by them. Every block has a segment of its own.
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.record.sources.allocator.history import DeviceFigures, Reading
from memfit.record.tensors import plain_tensors, tensors_in
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches


class SimulatedHistory(TorchDispatchMode):
    """Enter it around the run, outermost."""

    device_type = "cpu"

    def __init__(self, *, has_notes: bool = True, capacity: int = 2**40, device: str = "cuda:0") -> None:
        super().__init__()
        self._note = ""
        self.set_note = self._set_note if has_notes else None
        self._has_notes = has_notes
        self._capacity, self._device = capacity, device
        self._entries: list[dict[str, Any]] | None = None
        self._live: dict[int, tuple[int, int]] = {}
        self._known: dict[int, weakref.ref[Any]] = {}
        self._addresses: dict[int, int] = {}
        self.allocated = self.peak = self.num_requests = self.num_frees = 0
        self.num_readings = self.num_starts = 0
        self.with_stacks = False
        self._num_entered = 0

    def __enter__(self) -> Any:
        history = self

        def seen(original: Any) -> Any:
            def resize_(storage: torch.UntypedStorage, size: int) -> Any:  # FSDP's way to free and to restore: no operator
                known = history._known.get(id(storage))
                if known is not None:
                    history._free(id(storage), history._addresses[id(storage)])
                result = original(storage, size)
                if storage.nbytes() and storage.device.type == "cpu":
                    history._allocate(storage)
                return result

            return resize_

        if not self._num_entered:  # torch enters a mode again and again
            self._patches = Patches("the simulated history").because("storages that are resized")
            self._patches.wrap(torch.UntypedStorage, "resize_", seen)  # recorders wrap it too, in any order
        self._num_entered += 1
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        self._num_entered -= 1
        if not self._num_entered:
            self._patches.undo()
        super().__exit__(*args)

    # -- the run ---------------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.look_at(result)
        return result

    def look_at(self, value: Any) -> None:
        """Storages that were not seen before are new; those that were there from the start can be shown to it."""
        for tensor in tensors_in(value):
            for plain in plain_tensors(tensor):
                storage = plain.untyped_storage()
                is_real = (
                    not isinstance(plain, FakeTensor) and plain.device.type == "cpu" and storage.nbytes() and storage.data_ptr()
                )
                if is_real and id(storage) not in self._known:
                    self._allocate(storage)

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        address, size, key = storage.data_ptr(), storage.nbytes(), id(storage)
        self._known[key] = weakref.ref(storage, lambda _: self._free(key, address))
        self._addresses[key] = address
        self._live[address] = (size, self._given(size))
        self.allocated += self._given(size)
        self.peak = max(self.peak, self.allocated)
        self.num_requests += 1
        self._enter("alloc", address, size)

    def _free(self, key: int, address: int) -> None:
        if self._known.pop(key, None) is None:
            return
        size, given = self._live.pop(address)
        self.allocated -= given
        self.num_frees += 1
        self._enter("free_requested", address, size)
        self._enter("free_completed", address, size)

    def _given(self, size: int) -> int:
        return -(-size // 512) * 512

    def _enter(self, action: str, address: int, size: int) -> None:
        if self._entries is None:
            return
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time.time_ns() // 1000}
        if self._has_notes:
            entry["user_metadata"] = self._note
        if self.with_stacks and action == "alloc":
            entry["frames"] = _frames()
        self._entries.append(entry)

    def run_out(self, size: int) -> None:
        """Writes down that memory ran out, as the allocator does before it raises."""
        assert self._entries is not None
        self._entries.append(
            {"action": "oom", "device_free": 0, "size": size, "stream": 0, "time_us": time.time_ns() // 1000, "user_metadata": ""}
        )

    def _set_note(self, note: str) -> None:
        self._note = note

    # -- what a recording asks -------------------------------------------------------------------------------------------------

    def start(self, *, with_stacks: bool = False) -> None:
        self._entries, self.with_stacks = [], with_stacks
        self.num_starts += 1

    def read(self) -> Reading:
        assert self._entries is not None
        self.num_readings += 1
        return Reading([self._segment(address, *held) for address, held in self._live.items()], [list(self._entries)])

    def _segment(self, address: int, size: int, given: int) -> dict[str, Any]:
        block = {"address": address, "size": given, "requested_size": size, "state": "active_allocated", "frames": []}
        kind = "large" if given > 2**20 else "small"
        return {
            "device": 0,
            "address": address,
            "total_size": given,
            "stream": 0,
            "segment_type": kind,
            "is_expandable": True,
            "blocks": [block],
        }

    def stop(self) -> None:
        self._entries = None

    @property
    def is_on(self) -> bool:
        return self._entries is not None

    def num_devices(self) -> int:
        return 1

    def device_name(self, device: int) -> str:
        return self._device

    def figures(self, device: int) -> DeviceFigures:
        entries = self.num_requests + 2 * self.num_frees
        return DeviceFigures(self.allocated, self.peak, self.allocated, self.allocated, 0, entries, self.num_requests)

    def capacity(self, device: int) -> int:
        return self._capacity


def _frames() -> list[dict[str, Any]]:
    """The stack without this file, the innermost first."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            found.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
        frame = frame.f_back
    return found
