"""What ``run_hooks.py`` tells whoever listens. Everything here does nothing; listeners override what they care about."""

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
    """Told of module calls, optimizer steps, storage resizes and an engine's work while it is attached.

    Whatever goes wrong in a listener is caught, reported once, and ends the listening, never the run.
    """

    failed = False
    follows_modules = True
    """Is it told of module calls? One that is not has its own, cheaper way to follow them."""
    follows_storages = True
    """Is it told of storages that are resized? Some engines do that some hundred times a step."""
    reads_addresses = False
    """Does it know blocks by their addresses alone? Then it is shown tensors that a dispatch mode sees by itself."""

    def listening(self) -> bool:
        """Does this thread's work belong to the run that is followed?"""
        return not self.failed

    def enter_module(self, module: nn.Module, args: Any, kwargs: Any) -> None: ...

    def exit_module(self, module: nn.Module, args: Any, result: Any) -> None: ...

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None: ...

    def exit_optimizer(self, optimizer: torch.optim.Optimizer) -> None: ...

    def enter_task(self, engine: Engine | None, phase: Phase, modules: Any) -> int | None:
        """An engine begins work around a unit; without one, a state dict is made or loaded. Returns what ``exit_task`` takes,
        or ``None`` to hear no more of it."""
        return None

    def exit_task(self, depth: int) -> None: ...

    def learn_tensor(self, tensor: torch.Tensor, category: Category, module: nn.Module, name: str) -> None:
        """What an engine knows of a tensor; ``name`` is within ``module``."""

    def learn_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None: ...

    def learn_unit(
        self,
        unit: Any,
        tensors: Sequence[torch.Tensor],
        described: Callable[[], Iterable[tuple[torch.Tensor, nn.Module, str]]],
    ) -> None:
        """For readers of addresses: a unit's full parameters; ``described`` gives their modules and names."""

    def learn_gradients_of_unit(self, unit: Any, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """The same of full gradients, each with the parameter that it is for."""

    def resized(self, storage: torch.UntypedStorage) -> None: ...

    def emptied_cache(self) -> None: ...

    def silence(self, by: int) -> None:
        """Operators that are not part of the run begin (+1) or end (-1): those that only compute shapes, and our own."""

    def fail(self, error: BaseException) -> None:
        """Stops listening, says so once, and lets the run go on."""
        if self.failed:
            return
        self.failed = True
        warn(f"{self.describe_failure(error)}. Your run goes on without it; please report this.")

    def describe_failure(self, error: BaseException) -> str:
        return f"{type(self).__name__} failed and detached: {type(error).__name__}: {error}"


def warn(message: str) -> None:
    """Tells the user, whatever warnings are here: the run is not ours to end."""
    try:
        warnings.warn(f"memfit: {message}", RuntimeWarning, stacklevel=3)
    except RuntimeWarning:  # warnings are errors here
        print(f"memfit: {message}", file=sys.stderr)
