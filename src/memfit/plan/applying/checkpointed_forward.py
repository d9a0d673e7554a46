"""A unit's forward that computes again in backward what its policy does not keep.

The unit stays the module that it is: its class, its name, its parameters' names and its hooks. Only ``forward`` is another one,
so that what is around the unit (FSDP's hooks, ``module.compile()``) is around it as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, Self

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.plan.applying.caches import GivenCache, is_cache
from memfit.plan.applying.host_copies import HostLink
from memfit.plan.applying.kept_outputs import Choices, compiled_contexts, contexts
from memfit.plan.applying.running_statistics import Statistics
from memfit.plan.policy import UnitPolicy
from memfit.record.run_hooks import seen_as_call
from memfit.torch_compat.autograd import graph_task_id

_OPTIONS: Final = "memfit_checkpointing"
_ORIGINAL: Final = "memfit_forward"
_STATISTICS: Final = "memfit_statistics"


class CheckpointOptions:
    """How a unit is checkpointed: the arguments of ``torch.utils.checkpoint``, for eager and for compiled code."""

    def __init__(
        self,
        eager: Callable[[], Any] | None,
        compiled: Callable[[], Any] | None,
        evaluated: Callable[[], Any] | None,
        choices: Choices | None = None,
    ) -> None:
        """The first three make the contexts of a forward: of eager code, and of compiled code in training and in evaluation.
        ``None`` computes all of it again. ``choices`` are those of eager code."""
        self.choices = choices
        self.eager, self.compiled, self.evaluated = map(_arguments, (eager, compiled, evaluated))

    @classmethod
    def of_unit(cls, policy: UnitPolicy, link: HostLink) -> Self:
        if not policy.choices:
            return cls(None, None, None)
        actions = tuple((choice.operator, choice.call, choice.action.value) for choice in policy.choices)
        choices = Choices(policy.choices)
        compiled, evaluated = (functools.partial(compiled_contexts, actions, is_training) for is_training in (True, False))
        return cls(functools.partial(contexts, choices, link), compiled, evaluated, choices)

    @classmethod
    def of_contexts(cls, made: Callable[[], Any] | None) -> Self:
        """What ``torch.utils.checkpoint`` takes as ``context_fn``; ``None`` computes all of it again."""
        return cls(made, made, made)

    def __deepcopy__(self, memo: Any) -> CheckpointOptions:
        return self


def _arguments(made: Callable[[], Any] | None) -> dict[str, Any]:
    return {"use_reentrant": False} | ({} if made is None else {"context_fn": made})


def is_checkpointed(unit: nn.Module) -> bool:
    return _OPTIONS in unit.__dict__


def checkpoint_forward(unit: nn.Module, options: CheckpointOptions) -> None:
    """From now on the unit computes again."""
    # Bound to the unit by a partial, not by a closure: a copy of the model, or a model that was saved, computes with its own units.
    unit.__dict__[_OPTIONS] = options
    unit.__dict__[_ORIGINAL] = unit.forward
    unit.__dict__[_STATISTICS] = Statistics(unit)
    unit.forward = functools.partial(_checkpointed, unit)


def restore_forward(unit: nn.Module) -> None:
    del unit.__dict__[_OPTIONS], unit.__dict__[_STATISTICS]
    original = unit.__dict__.pop(_ORIGINAL)
    del unit.forward
    if getattr(unit.forward, "__func__", unit.forward) is not getattr(original, "__func__", original):
        unit.forward = original  # somebody had replaced it before


def _checkpointed(unit: nn.Module, *args: Any, **kwargs: Any) -> Any:
    options: CheckpointOptions = unit.memfit_checkpointing  # type: ignore[assignment]
    if torch.compiler.is_compiling():
        return checkpoint(unit.memfit_forward, *args, **(options.compiled if unit.training else options.evaluated), **kwargs)
    if not torch.is_grad_enabled():
        return unit.memfit_forward(*args, **kwargs)  # type: ignore[operator]
    given = {id(value): GivenCache(value) for value in (*args, *kwargs.values()) if is_cache(value)}
    if given:
        args = tuple(given.get(id(value), value) for value in args)
        kwargs = {name: given.get(id(value), value) for name, value in kwargs.items()}
    computed = functools.partial(_with_caches, unit, tuple(given.values())) if given else functools.partial(_computed, unit)
    return checkpoint(computed, *args, **options.eager, **kwargs)


def _with_caches(unit: nn.Module, given: tuple[GivenCache, ...], *args: Any, **kwargs: Any) -> Any:
    with ExitStack() as caches:
        for cache in given:
            caches.enter_context(cache)
        own = {id(cache): cache.now for cache in given}
        args = tuple(own.get(id(value), value) for value in args)
        return _computed(unit, *args, **{name: own.get(id(value), value) for name, value in kwargs.items()})


def _computed(unit: nn.Module, *args: Any, **kwargs: Any) -> Any:
    original: Any = unit.memfit_forward
    if graph_task_id() == -1:
        return original(*args, **kwargs)
    options: Any = unit.memfit_checkpointing
    if unit.training and options.choices is not None:
        options.choices.refuse_what_never_ran()
    statistics: Any = unit.memfit_statistics
    with statistics.unchanged():
        return seen_as_call(original)(unit, *args, **kwargs)
