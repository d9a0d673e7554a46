"""Steps of optimizers that repeat: what they do to memory is written down, and their counters go on.

A step is like another where the optimizer, its settings but for how large their numbers are, its state and the gradients are alike.
One that makes or frees anything, takes a closure or changes a number by another amount each time is run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from memfit.predict.clock import TimedBuilder
from memfit.predict.run.known_calls import MOST_FAILURES, are_wanted
from memfit.predict.run.lengths import WATCHED
from memfit.predict.run.windows import LedgerWindow, NotRepeatableError, RunReason, Tape
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.dispatch import without_modes
from memfit.torch_compat.patches import Patches

Counters = tuple[float, ...]


@dataclass
class _KnownStep:
    """Of an optimizer: its last step that was run."""

    key: Any = None
    window: LedgerWindow | None = None
    increments: Counters = ()
    num_alike: int = 0
    num_failures: int = 0

    def see(self, key: Any, window: LedgerWindow, increments: Counters) -> None:
        is_alike = (
            self.window is not None
            and self.key == key
            and self.window.digest == window.digest
            and np.array_equal(self.window.size, window.size)
            and self.increments == increments
        )
        self.num_alike = self.num_alike + 1 if is_alike else 1
        self.key, self.window, self.increments = key, window, increments

    def fail(self) -> None:
        self.window, self.num_alike = None, 0
        self.num_failures += 1


class KnownSteps:
    """Watches and replaces the steps of optimizers."""

    def __init__(self, recorder: Recorder, *, is_wanted: bool = True) -> None:
        self._recorder, self._is_wanted = recorder, is_wanted and are_wanted()
        self._known: weakref.WeakKeyDictionary[Optimizer, _KnownStep] = weakref.WeakKeyDictionary()
        self.num_replaced = 0

    def watch(self, optimizer: Optimizer, patches: Patches) -> None:
        """From now on, steps of optimizers of its kind are watched."""
        builder = self._recorder.builder
        owner = next((kind for kind in type(optimizer).__mro__ if "step" in vars(kind)), None)
        step = None if owner is None else vars(owner)["step"]
        inner = getattr(step, "__wrapped__", None)
        if not isinstance(builder, TimedBuilder) or not self._is_wanted or inner is None or not getattr(step, "hooked", False):
            return
        if getattr(inner, "is_watched", False):
            return
        watched = Optimizer.profile_hook_step(self._around(inner, builder))
        watched.hooked = True  # type: ignore[attr-defined]
        patches.replace(owner, "step", watched)

    def _around(self, inner: Callable[..., Any], builder: TimedBuilder) -> Callable[..., Any]:
        tape = Tape(builder)

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            known = self._known.get(optimizer)
            if known is None:
                known = self._known[optimizer] = _KnownStep()
            may_watch = (
                known.num_failures <= MOST_FAILURES
                and not any(value is not None for value in (*args, *kwargs.values()))
                and not builder.follows_returns
                and self._recorder.listening()
                and graph_task_id() == -1
            )
            if not may_watch:
                known.fail()
                return inner(optimizer, *args, **kwargs)
            with self._recorder.quiet():
                key = _key_of(optimizer)
            outer_scope = self._recorder.position.scopes.top
            if known.window is not None and known.num_alike >= WATCHED and known.key == key:
                with self._recorder.quiet(), without_modes(), torch.no_grad():
                    tape.write(known.window, known.window.size, outer_scope=outer_scope)
                    _advance(optimizer, known.increments)
                self._recorder.makes_nothing = True
                self.num_replaced += 1
                return None
            before = _counters(optimizer)
            start = tape.place()
            result = inner(optimizer, *args, **kwargs)
            stretch, end = tape.stretch_since(start), tape.place()
            try:
                window = tape.window(start, end, stretch, outer_scope=outer_scope)
                after = _counters(optimizer)
                if window.survivors() or result is not None or len(before) != len(after):
                    raise NotRepeatableError(RunReason.KEEPS)
                increments = tuple(then - now for now, then in zip(before, after, strict=True))
                known.see(key, window, increments)
            except NotRepeatableError:
                known.fail()
            return result

        step.is_watched = True  # type: ignore[attr-defined]
        step.__wrapped__ = inner  # type: ignore[attr-defined]
        step.__name__ = getattr(inner, "__name__", "step")
        return step


def _key_of(optimizer: Optimizer) -> tuple[Any, ...]:
    groups = tuple(
        tuple((name, _setting(value)) for name, value in group.items() if name != "params") for group in optimizer.param_groups
    )
    gradients = tuple(
        (id(parameter), None if parameter.grad is None else (parameter.grad.dtype, parameter.grad.layout))
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
    state = tuple(len(values) if isinstance(values, dict) else 1 for values in optimizer.state.values())
    own = tuple(
        (name, _setting(value)) for name, value in vars(optimizer).items() if not isinstance(value, (int, float)) or value is True
    )
    return (groups, gradients, state, own)


def _setting(value: Any) -> Any:
    """What of a setting can decide which operators run."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value == 0
    if isinstance(value, (list, tuple, dict)):
        return len(value)
    return type(value)


def _places(optimizer: Optimizer) -> Iterator[tuple[Any, Any]]:
    """Where numbers may be: containers, with their keys."""
    holders = (
        vars(optimizer),
        *optimizer.param_groups,
        *(values for values in optimizer.state.values() if isinstance(values, dict)),
    )
    for holder in holders:
        for name, value in holder.items():
            if (isinstance(value, (int, float)) and not isinstance(value, bool)) or _is_counter(value):
                yield holder, name


def _is_counter(value: Any) -> bool:
    return type(value) is torch.Tensor and value.dim() == 0 and value.device.type == "cpu"


def _counters(optimizer: Optimizer) -> Counters:
    with without_modes():
        return tuple(float(holder[name]) for holder, name in _places(optimizer))


def _advance(optimizer: Optimizer, increments: Counters) -> None:
    tensors: dict[float, list[torch.Tensor]] = {}
    for (holder, name), increment in zip(list(_places(optimizer)), increments, strict=True):
        if increment:
            if isinstance(holder[name], torch.Tensor):
                tensors.setdefault(increment, []).append(holder[name])
            else:
                holder[name] += type(holder[name])(increment)
    for increment, counters in tensors.items():
        torch.ops.aten._foreach_add_.Scalar(counters, increment)
