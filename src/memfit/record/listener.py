"""What ``run_hooks.py`` reports. A listener overrides what it needs.

A ``ModuleListener`` also hears of module calls, a ``StorageListener`` of storages that are resized: each of the two costs the run a
wrapper.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from memfit.engines import Engine
from memfit.ledger import Category, Phase


class Listener:
    """Receives optimizer steps and an engine's work while it is attached.

    An exception in a listener is reported once and detaches the listener. It never reaches the run.
    """

    failed = False

    def listening(self) -> bool:
        """True if this thread's work is part of the recording."""
        return not self.failed

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None: ...

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None: ...

    def enter_task(self, engine: Engine | None, phase: Phase, modules: Any) -> int | None:
        """An engine begins work around a unit; without one, a state dict is made or loaded. Returns what ``exit_task`` takes,
        or ``None`` to hear no more of it."""
        return None

    def exit_task(self, depth: int) -> None: ...

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        """An engine describes a tensor; ``name`` is relative to ``module``."""

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None: ...

    def learn_cached(self, tensor: torch.Tensor) -> None:
        """A model caches keys or values for later tokens."""

    def learn_unit(
        self,
        unit: Any,
        tensors: Sequence[torch.Tensor],
        described: Callable[[], Iterable[tuple[torch.Tensor, nn.Module, str]]],
    ) -> None:
        """An engine holds a unit's full parameters; ``described`` gives the same tensors with their modules and names."""
        for tensor, module, name in described():
            self.learn_tensor(tensor, Category.UNSHARDED_PARAMETER, module, name)

    def learn_gradients_of_unit(self, unit: Any, gradients: Callable[[], Sequence[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """An engine is about to reduce and free a unit's full gradients: ``gradients`` gives each with its parameter."""

    def learn_shards(self, shards: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]) -> None:
        """An engine has reduced a unit's gradients: ``shards`` gives each reduced gradient with its parameter."""
        for gradient, parameter in shards():
            self.learn_gradient(gradient, parameter)

    def emptied_cache(self) -> None: ...

    def silence(self, by: int) -> None:
        """Operators that are not part of the run begin (+1) or end (-1): those that only compute shapes, and our own."""

    def fail(self, error: BaseException) -> None:
        """Stops listening and warns once; the run goes on."""
        if self.failed:
            return
        self.failed = True
        warn(f"{self.describe_failure(error)}. Your run goes on without it; please report this.")

    def describe_failure(self, error: BaseException) -> str:
        return f"{type(self).__name__} failed and detached: {type(error).__name__}: {error}"


class ModuleListener(Listener):
    """Also receives every module call."""

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None: ...

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None:
        """A call has ended; ``result`` is ``None`` if it raised."""


class StorageListener(Listener):
    """Also receives every resized storage; some engines resize hundreds per step."""

    def resized(self, storage: torch.UntypedStorage) -> None: ...


def warn(message: str) -> None:
    """Warns the user. Prints instead of raising where warnings are errors."""
    try:
        warnings.warn(f"memfit: {message}", RuntimeWarning, stacklevel=3)
    except RuntimeWarning:  # warnings are errors here
        print(f"memfit: {message}", file=sys.stderr)
