"""Tensors that wait on the host between forward and backward.

::

    forward    | op ──> output |  next op ...            the copy runs on a stream of its own, beside what comes next
    side       |               | ──> pinned host memory
    backward   | unit 7 computes again, unit 6's come back beside it | unit 6 ...

What a unit needs is brought back while the unit after it goes backward: so backward waits only where the link is slower than that.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor


class HostLink:
    """The way to the host and back, for one model."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}
        self.last: weakref.ref[UnitCopies] | None = None
        """The unit that last offloaded something."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A model that is saved has no copies under way."""
        return HostLink, ()

    def stream(self, device: torch.device) -> Any:
        """One for each device: copies come one after the other."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


class HostCopy:
    """One tensor, on the host. On a device without streams of its own it stays where it is."""

    def __init__(self, tensor: Tensor, link: HostLink) -> None:
        self._link, self._device, self._stride = link, tensor.device, tensor.stride()
        self._back: Tensor | None = None
        self._is_here: Any = None
        self._source: Tensor | None = None
        if tensor.device.type != "cuda":
            self._host, self._back = None, tensor.detach()
            return
        side = link.stream(tensor.device)
        side.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(side):
            self._host = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._is_there = side.record_event()
        self._source = tensor.detach()

    def settle(self) -> None:
        """What is issued from now on waits until the copy is on the host; its memory on the GPU is free for it."""
        if self._source is not None:
            torch.cuda.current_stream(self._device).wait_event(self._is_there)
            self._source = None

    def fetch(self) -> None:
        """Begins to bring it back."""
        if self._back is not None or self._host is None:
            return
        self.settle()
        here, side = torch.cuda.current_stream(self._device), self._link.stream(self._device)
        self._back = torch.empty_strided(self._host.size(), self._stride, dtype=self._host.dtype, device=self._device)
        side.wait_stream(here)  # the memory may have been another tensor's until now
        with torch.cuda.stream(side):
            self._back.copy_(self._host, non_blocking=True)
            self._is_here = side.record_event()
        self._host = None

    def take(self) -> Tensor:
        """The tensor, as it was. What is issued from now on waits until it is here."""
        self.fetch()
        assert self._back is not None
        if self._is_here is not None:
            torch.cuda.current_stream(self._device).wait_event(self._is_here)
        back, self._back = self._back, None
        return back


class UnitCopies:
    """What one forward of a unit has on the host."""

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._copies: list[HostCopy] = []
        self._before: weakref.ref[UnitCopies] | None = None

    def add(self, tensor: Tensor) -> HostCopy:
        if not self._copies:
            self._before, self._link.last = self._link.last, weakref.ref(self)
            # One unit at a time is under way: what is needed on the GPU does not depend on how fast the link is.
            for copy in self._copies_before():
                copy.settle()
        copy = HostCopy(tensor, self._link)
        self._copies.append(copy)
        return copy

    def fetch(self) -> None:
        """Brings back all of this unit, and what the unit before it in forward will need next."""
        for copy in (*self._copies, *self._copies_before()):
            copy.fetch()

    def _copies_before(self) -> list[HostCopy]:
        before = self._before() if self._before is not None else None
        return before._copies if before is not None else []
