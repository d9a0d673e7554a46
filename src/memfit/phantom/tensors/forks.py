"""Forked children, such as data loaders' workers, leave their copy of the world before anything else runs.

::

    the modes                    are gone: host tensors are real, of whatever size
    host tensors without data    (a dataset made by torch.randn) are read as if every element were what is assumed of it
    work on the GPU              is refused, as CUDA refuses it in a forked process
    everything else              stays as it is: files are still those that the prediction shows

Raising where a worker sends its batch would not help: that happens in a separate thread, and the parent would wait forever. So
what cannot be sent raises where it is received.
"""

from __future__ import annotations

import contextlib
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import multiprocessing

from memfit.errors import PredictionError
from memfit.phantom.device.device_alias import inner
from memfit.phantom.tensors.mode import PhantomMode
from memfit.phantom.tensors.threads import Threads
from memfit.phantom.values.answers import Values
from memfit.torch_compat.dispatch import leave_mode, modes_of_this_thread, tree_map, without_modes
from memfit.torch_compat.fake_tensors import FakeTensor, device_query
from memfit.torch_compat.patches import Patches

REFUSAL = (
    "a forked process, such as a data loader's worker, cannot work on the GPU, on a real one no more than here: do it in the main "
    "process, or have the workers make host tensors only"
)


class Forks:
    """What a forked child must undo."""

    def __init__(self, patches: Patches, mode: PhantomMode, threads: Threads, values: Values) -> None:
        self._patches, self._mode, self._threads, self._values = patches, mode, threads, values

    def begin(self) -> None:
        """Called when the world is entered."""
        global _active
        _active = self
        self._patches.finally_call(_end)

    def leave_in_child(self) -> None:
        for mode in reversed(modes_of_this_thread()):
            if mode is self._mode:
                leave_mode(mode)
        self._mode.stay_behind()
        self._threads.stay_behind(PredictionError(REFUSAL))
        torch.autograd.set_multithreading_enabled(True)
        self._patches.because("a forked child has host tensors only")
        self._patches.replace(FakeTensor, "__torch_dispatch__", classmethod(self._compute))
        self._patches.replace_item(ForkingPickler._extra_reducers, FakeTensor, self._send)  # type: ignore[attr-defined]

    def _compute(self, cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator on real tensors in place of those without data."""
        if func is device_query:
            return inner(args[0].fake_device)
        return func(*tree_map(self._real, args), **tree_map(self._real, kwargs or {}))

    def _real(self, value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        if value.fake_device.type != "cpu":
            raise PredictionError(REFUSAL)
        return self._values.on_host(value)

    def _send(self, tensor: Any) -> Any:
        """For the pickler: the function that the receiving process calls, and its arguments."""
        with without_modes():
            try:
                return multiprocessing.reductions.reduce_tensor(self._real(tensor).clone())
            except PredictionError as error:
                return _raise, (str(error),)


def _raise(problem: str) -> None:
    raise PredictionError(problem)


_active: Forks | None = None


def _end() -> None:
    global _active
    _active = None


def _leave_in_child() -> None:
    """Called at the start of a forked child."""
    if _active is not None:
        with contextlib.suppress(Exception):
            _active.leave_in_child()


if hasattr(os, "register_at_fork"):  # elsewhere there are no forks
    os.register_at_fork(after_in_child=_leave_in_child)
