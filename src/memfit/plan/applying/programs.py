"""A plan, applied to a program that does not know of it: when its model is first called, and nothing else is changed.

::

    MEMFIT_PLAN=plan.json python train.py ──> apply_in_this_program ──> the first call of each model ──> is it the planned one?
                                                      │                                                  └─> plan.apply_to(model)
                                                      └─> the first backward: without a planned model until then, it is refused
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from memfit.errors import ConfigError
from memfit.plan.applying.chunked_loss import chunk_losses
from memfit.plan.applying.named_units import depths_of, named_units, unwrapped
from memfit.plan.plan_file import Plan, PlannedModel
from memfit.torch_compat.autograd import graph_task_id
from memfit.torch_compat.patches import Patches

SETTINGS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Where torch looks for the allocator's settings, by its older and its newer name."""


def apply_in_this_program(path: Path | str) -> None:
    """Applies the plan in a file to the first model of this program that it was made for."""
    plan = Plan.load(path)
    plan.check_for_programs()
    if plan.means.alloc_conf:
        set_allocator(plan.means.alloc_conf, os.environ)
    if plan.means.loss_rows:
        chunk_losses(plan.means.loss_rows, Patches("a plan").because("losses some rows at a time"))
    ProgramPlan(plan).begin()


def set_allocator(conf: str, environment: MutableMapping[str, str]) -> None:
    """Before CUDA begins; ``ConfigError`` where other settings are there."""
    for name in SETTINGS:
        if environment.get(name, conf) != conf:
            raise ConfigError(
                f"the plan needs {name}={conf}, and this program has {environment[name]}: make a plan with --alloc-conf"
            )
        environment[name] = conf


def described(model: nn.Module) -> PlannedModel:
    """What tells a model from others."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return PlannedModel(kind=type(model).__name__, num_parameters=num_parameters, depths=depths_of(unwrapped(model)))


class ProgramPlan:
    """Waits for the planned model, applies the plan to it, and is gone."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._patches = Patches("a plan").because("when the program first calls the planned model")
        self._others: dict[str, str] = {}
        """Models that are not the planned one, and why."""
        self.is_applied = False

    def begin(self) -> None:
        """From now on, until the planned model is there; its absence is an error at the first backward."""
        if self._plan.computes_again:
            watch_first_calls(self.see, self._patches)
            self._patches.wrap(torch.autograd, "backward", self._before_backward)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While a program is predicted; ``ConfigError`` where it ends without a call of the planned model."""
        means = Patches("a plan").because("losses some rows at a time")
        if self._plan.computes_again:
            watch_first_calls(self.see, self._patches)
        if self._plan.means.loss_rows:
            chunk_losses(self._plan.means.loss_rows, means)
        try:
            yield
            if self._plan.computes_again:
                self.refuse()
        finally:
            means.undo()
            self._patches.undo()

    def see(self, model: nn.Module) -> None:
        """A model is about to be called for the first time."""
        if self.is_applied:
            return
        reason = self._why_not(model)
        if reason:
            self._others[type(model).__name__] = reason
            return
        self._plan.apply_to(model)
        self.is_applied = True
        self._patches.undo()

    def _why_not(self, model: nn.Module) -> str:
        policy, planned = self._plan.checkpointing, self._plan.model
        if policy is not None:
            missing = [unit for unit in (*policy.units, *policy.untouched) if unit not in named_units(model)]
            if missing:
                return f"it has no {', '.join(missing[:2])}{' and more' if len(missing) > 2 else ''}"
        if planned is not None and planned != described(model):
            found = described(model)
            return (
                f"it is a {found.kind} of {found.num_parameters:,} parameters, the planned one a {planned.kind} of "
                f"{planned.num_parameters:,}"
            )
        return ""

    def refuse(self) -> None:
        """``ConfigError`` where no planned model was called."""
        if not self.is_applied:
            seen = "; ".join(f"{kind}: {reason}" for kind, reason in self._others.items()) or "no model was called"
            raise ConfigError(f"the plan is for another model than this program trains ({seen}). Make one for it: memfit plan")

    def _before_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.refuse()
            return original(*args, **kwargs)

        return backward


def watch_first_calls(see: Callable[[nn.Module], None], patches: Patches) -> None:
    """Until the patches are undone, ``see`` is given every model just before it is called for the first time."""
    inside, seen = threading.local(), set()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "is_inside", False) or graph_task_id() != -1:
                return original(module, *args, **kwargs)
            inside.is_inside = True
            try:
                if id(module) not in seen:
                    seen.add(id(module))
                    see(unwrapped(module))
                return original(module, *args, **kwargs)
            finally:
                inside.is_inside = False

        return call

    patches.wrap(nn.Module, "__call__", make)
