"""Activation checkpointing, unit by unit: what a unit's backward needs is computed again instead of kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from memfit.choices import KEPT_OPERATORS
from memfit.errors import ConfigError
from memfit.fsdp.units import replace_modules
from memfit.torch_compat.fsdp import checkpoint_wrapper


@runtime_checkable
class Applied(Protocol):
    """What changes a model by itself: a ``memfit.Plan``."""

    def apply_to(self, model: nn.Module) -> Any: ...


Checkpointing = str | Callable[..., CheckpointPolicy | bool] | Applied | None
"""``"full"``, ``"selective"``, one of torch's selective checkpoint policies, a plan, or ``None`` for none."""

SAVED_OPS = frozenset(functools.reduce(getattr, name.split("."), torch.ops) for name in KEPT_OPERATORS)


def save_the_slow(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The policy of ``"selective"``."""
    return CheckpointPolicy.MUST_SAVE if op in SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def check_checkpointing(given: Checkpointing) -> None:
    if isinstance(given, str) and given not in ("full", "selective"):
        raise ConfigError(f"checkpointing={given!r}: say 'full', 'selective', None, or give a policy")
    if given is not None and not isinstance(given, str | Applied) and not callable(given):
        raise ConfigError(f"checkpointing takes 'full', 'selective', None, a policy or a plan, not {given!r}")


def checkpoint_units(model: nn.Module, units: Sequence[nn.Module], how: Checkpointing) -> list[nn.Module]:
    """Wraps each unit where it stands in the model; gives the units as they are now."""
    if how is None:
        return list(units)
    if isinstance(how, Applied):
        how.apply_to(model)  # a plan has units of its own, and changes them where they stand
        return list(units)
    policy = save_the_slow if how == "selective" else how
    options = {} if how == "full" else {"context_fn": functools.partial(create_selective_checkpoint_contexts, policy)}
    wrapped = {unit: checkpoint_wrapper(unit, **options) for unit in units}
    replace_modules(model, wrapped)
    return [wrapped[unit] for unit in units]
