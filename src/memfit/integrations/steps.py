"""Chosen steps of a training loop, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from memfit.analysis import find_step_peaks
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.ledger.journal import path_of_rank
from memfit.record.listener import warn
from memfit.record.tracker import Tracker

_P = ParamSpec("_P")
_T = TypeVar("_T")


def guarded(method: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """The training is not ours to end: what goes wrong in ``method`` ends the recording, with a warning."""

    @wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        recorder: Any = args[0]
        if recorder.failed:
            return None
        try:
            return method(*args, **kwargs)
        except Exception as error:
            recorder.give_up(error)
            return None

    return call


class StepRecorder:
    """Tracks the steps that were chosen, and writes their ledger after each of them."""

    def __init__(self, steps: Iterable[int], save_to: str | Path, on_oom: str | Path | None = None) -> None:
        self.steps = _step_numbers(steps)
        self._save_to, self._on_oom = Path(save_to), on_oom
        if not self._save_to.parent.is_dir():
            raise ConfigError(f"cannot write a ledger to {save_to}: choose a folder that exists")
        self.failed = False
        self._tracker: Tracker | None = None
        self._running = False

    @property
    def running(self) -> bool:
        return self._running

    @property
    def ledger(self) -> Ledger | None:
        """Of the chosen steps so far; ``None`` before the first."""
        return self._tracker.ledger if self._tracker is not None else None

    @property
    def path(self) -> Path:
        """Where the ledger is; with several ranks, each has its own: ``run.rank3.memfit``."""
        if self._tracker is None:
            return self._save_to
        info = self._tracker.ledger.info
        return path_of_rank(self._save_to, info.rank, info.world_size)

    @guarded
    def begin(self, step: int, model: nn.Module | None, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """A step begins: it is tracked from here if it was chosen."""
        if step not in self.steps or self._running:
            return
        if self._tracker is None:
            self._tracker = Tracker(model, list(optimizers), on_oom=self._on_oom)
        self._tracker.__enter__()
        self._running = True
        self._tracker.step(step)

    @guarded
    def end(self) -> dict[str, float]:
        """The step is over. Gives its figures, none if it was not tracked."""
        if not self._running or self._tracker is None:
            return {}
        self._leave(None)
        self._tracker.ledger.save(self.path)
        return step_scalars(self._tracker.ledger)

    @guarded
    def stop(self, error: BaseException | None = None) -> None:
        """The loop is over, maybe because of ``error``, in the middle of a step."""
        if self._running and self._tracker is not None:
            self._leave(error)
            self._tracker.ledger.save(self.path)

    def _leave(self, error: BaseException | None) -> None:
        assert self._tracker is not None
        self._running = False
        self._tracker.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    def give_up(self, error: Exception) -> None:
        self.failed = True
        warn(f"recording steps failed: {type(error).__name__}: {error}. The training goes on without it")
        if self._running:
            try:
                self._leave(None)
            except Exception:  # it has been told already that something is wrong
                self._running = False


def step_scalars(ledger: Ledger) -> dict[str, float]:
    """The last step's peak on the main device, and what it is made of, in bytes."""
    if ledger.main_device is None:
        return {}
    last = find_step_peaks(ledger, ledger.main_device)[-1]
    figures = {"memfit/peak_bytes": float(last.peak.size_bytes), "memfit/end_bytes": float(last.end_bytes)}
    return figures | {f"memfit/peak/{category.name.lower()}_bytes": float(size) for category, size in last.peak.breakdown.items()}


def _step_numbers(steps: Iterable[int]) -> frozenset[int]:
    found = list(steps)
    if not found or not all(isinstance(step, int) and not isinstance(step, bool) and step >= 0 for step in found):
        raise ConfigError(f"cannot track the steps {found}: give their numbers, counted from 0, like range(2, 5)")
    return frozenset(found)
