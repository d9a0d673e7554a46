"""``memfit.apply``: a plan becomes what a model does."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch import nn

from memfit.errors import ConfigError, UnknownUnitError
from memfit.plan.applying.checkpointed_forward import Options, checkpoint_forward, is_checkpointed, restore_forward
from memfit.plan.applying.host_copies import HostLink
from memfit.plan.applying.named_units import named_units, unwrapped
from memfit.plan.plan_file import Plan
from memfit.plan.policy import CheckpointingPolicy

Model = TypeVar("Model", bound=nn.Module)


def apply(model: Model, plan: Plan | CheckpointingPolicy | Path | str) -> Model:
    """Has the model compute again, keep and offload what a plan says; the model is changed in place, and returned.

    ``plan`` is a ``Plan``, the path of its file, or a policy. Call it before the first step, before or after the model is sharded
    or compiled: names of parameters and state dicts stay as they are. What the model computes stays the same, bit by bit where its
    kernels give the same twice. ``memfit.plan.undo(model)`` takes it back.
    """
    policy = _policy_of(plan)
    root = unwrapped(model)
    if any(is_checkpointed(module) for module in root.modules()):
        raise ConfigError("a plan is applied to this model already: take it back with memfit.plan.undo(model) first")
    if policy is None:
        return model
    known = named_units(root)
    missing = tuple(unit for unit in (*policy.units, *policy.untouched) if unit not in known)
    if missing:
        raise UnknownUnitError(missing, tuple(known))
    link = HostLink()
    for group in policy.groups:
        options = Options(group, link)
        for unit in group.units:
            checkpoint_forward(known[unit], options)
    return model


def undo(model: Model) -> Model:
    """Takes back what ``apply`` did."""
    for module in unwrapped(model).modules():
        if is_checkpointed(module):
            restore_forward(module)
    return model


def _policy_of(plan: Plan | CheckpointingPolicy | Path | str) -> CheckpointingPolicy | None:
    if isinstance(plan, str | Path):
        plan = Plan.load(plan)
    if isinstance(plan, Plan):
        return plan.checkpointing
    if isinstance(plan, CheckpointingPolicy):
        return plan
    raise ConfigError(f"memfit.apply takes a plan, its file or a policy, not {type(plan).__name__}")
