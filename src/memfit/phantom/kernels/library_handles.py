"""What libraries have taken from the allocator so far, and keep: each block once, when the first operator needs it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from memfit.phantom.device.streams import current_stream_number
from memfit.phantom.kernels import RULES
from memfit.phantom.kernels.rule import Arguments, Kept
from memfit.phantom.target import Target
from memfit.torch_compat.autograd import graph_task_id

_BACKWARD_THREAD = -1
_PROCESS = (0, 0)


class _Handles:
    """Threads have a library's handles one after the other: a thread that ends gives its own back, and the next takes it.

    Source: ATen/cuda/detail/DeviceThreadHandles.h.
    """

    def __init__(self) -> None:
        self.free: list[int] = []
        self.num_made = 0
        self._of_thread = threading.local()

    def of_this_thread(self) -> int:
        held: _Held | None = getattr(self._of_thread, "held", None)
        if held is None:
            held = self._of_thread.held = _Held(self)
        return held.number


class _Held:
    """Dies with its thread."""

    def __init__(self, handles: _Handles) -> None:
        self._handles = handles
        if handles.free:
            self.number = handles.free.pop()
        else:
            self.number = handles.num_made
            handles.num_made += 1

    def __del__(self) -> None:
        self._handles.free.append(self.number)


class Libraries:
    """What cuBLAS, cuBLASLt and cuDNN keep in one process, as the rules' ``keeps`` say."""

    def __init__(self, target: Target, free_all: Callable[[], None] = lambda: None) -> None:
        """``free_all`` is called when everything is given back."""
        self._target = target
        self._handles = _Handles()
        self._taken: set[tuple[Kept, tuple[int, int]]] = set()
        self._free_all = free_all
        _all.add(self)

    def give_back(self) -> None:
        """Nothing is kept any more; the next calls take theirs anew."""
        self._taken.clear()
        self._free_all()

    def newly_taken(self, func: Any, args: Arguments) -> list[int]:
        """The sizes of the blocks that this call makes them take for good."""
        rule = RULES.get(func)
        if rule is None or rule.keeps is None:
            return []
        needed = [(kept, self._thread_and_stream() if kept.is_per_thread_and_stream else _PROCESS) for kept in rule.keeps(args)]
        fresh = [key for key in needed if key not in self._taken]
        self._taken.update(fresh)
        sizes = [kept.size_bytes(self._target) for kept, _ in fresh]
        return [size for size in sizes if size]

    def _thread_and_stream(self) -> tuple[int, int]:
        """On a GPU backward has a thread of its own; in the phantom world it runs on the caller's."""
        thread = self._handles.of_this_thread() if graph_task_id() == -1 else _BACKWARD_THREAD
        return thread, current_stream_number()


_all: weakref.WeakSet[Libraries] = weakref.WeakSet()


def give_workspaces_back() -> None:
    """What ``torch._C._cuda_clearCublasWorkspaces`` does."""
    for libraries in list(_all):
        libraries.give_back()
