"""A policy becomes what a model does."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from memfit.errors import ConfigError, UnknownUnitError
from memfit.fsdp.checkpointing import check_checkpointing, save_the_slow
from memfit.fsdp.units import repeated_blocks
from memfit.plan.applying.checkpointed_forward import Options, checkpoint_forward, is_checkpointed, restore_forward
from memfit.plan.applying.host_copies import HostLink
from memfit.plan.applying.named_units import named_units, unwrapped
from memfit.plan.policy import CheckpointingPolicy

Model = TypeVar("Model", bound=nn.Module)


def apply_policy(model: Model, policy: CheckpointingPolicy | None) -> Model:
    """Has the model compute again, keep and offload what a policy says; it is changed in place, and returned."""
    root = _untouched(model)
    if policy is None:
        return model
    known = named_units(root)
    missing = tuple(unit for unit in (*policy.units, *policy.untouched) if unit not in known)
    if missing:
        raise UnknownUnitError(missing, tuple(known))
    link = HostLink()
    for group in policy.groups:
        options = Options.of_unit(group, link)
        for unit in group.units:
            checkpoint_forward(known[unit], options)
    return model


def checkpoint_blocks(model: Model, how: str) -> Model:
    """Has each repeated block of the model compute again all of its forward (``"full"``), or all but products and attention
    (``"selective"``)."""
    check_checkpointing(how)
    blocks = repeated_blocks(_untouched(model))
    if not blocks:
        raise ConfigError(
            f"this plan computes the repeated blocks of a model again ({how} checkpointing), and {type(model).__name__} has none: "
            "it is a plan for another model"
        )
    options = Options.of_policy(save_the_slow if how == "selective" else None)
    for block in blocks:
        checkpoint_forward(block, options)
    return model


def _untouched(model: nn.Module) -> nn.Module:
    """What is inside all wrappers; refused where a plan is applied to it already."""
    root = unwrapped(model)
    if any(is_checkpointed(module) for module in root.modules()):
        raise ConfigError("a plan is applied to this model already: take it back with memfit.plan.applying.undo(model) first")
    return root


def undo(model: Model) -> Model:
    """Takes back what ``apply_policy`` did."""
    for module in unwrapped(model).modules():
        if is_checkpointed(module):
            restore_forward(module)
    return model
