"""A policy becomes what a model does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

from memfit.errors import ConfigError, UnknownUnitError
from memfit.fsdp.units import check_checkpointing, repeated_blocks, save_the_slow
from memfit.plan.applying.caches import make_as_before, make_none_in_training
from memfit.plan.applying.checkpointed_forward import CheckpointOptions, checkpoint_forward, is_checkpointed, restore_forward
from memfit.plan.applying.host_copies import HostLink
from memfit.plan.applying.named_units import depths_of, named_units, unwrapped
from memfit.plan.policy import CheckpointingPolicy

Model = TypeVar("Model", bound=nn.Module)


def apply_policy(model: Model, policy: CheckpointingPolicy | None, depths: Mapping[str, int] | None = None) -> Model:
    """Has the model compute again, keep and offload what a policy says; it is changed in place, and returned.

    ``depths`` are those of the model that the policy was made for, where they are known. A model of other depths is refused.
    """
    root = _untouched(model)
    if policy is None:
        return model
    known = named_units(root)
    missing = tuple(unit for unit in (*policy.units, *policy.untouched) if unit not in known)
    if missing:
        raise UnknownUnitError(missing, tuple(known))
    if depths is None:
        _refuse_more_units(policy, known)
    else:
        _refuse_another_depth(policy, depths, depths_of(root))
    link = HostLink()
    for group in policy.groups:
        options = CheckpointOptions.of_unit(group, link)
        for unit in group.units:
            checkpoint_forward(known[unit], options)
    if policy.groups:
        make_none_in_training(root)
    return model


def checkpoint_blocks(model: Model, how: str) -> Model:
    """Has each repeated block of the model compute again all of its forward (``"full"``), or all but products and attention
    (``"selective"``)."""
    check_checkpointing(how)
    root = _untouched(model)
    blocks = repeated_blocks(root)
    if not blocks:
        raise ConfigError(
            f"this plan computes the repeated blocks of a model again ({how} checkpointing), and {type(model).__name__} has none: "
            "it is a plan for another model"
        )
    options = CheckpointOptions.of_contexts(save_the_slow if how == "selective" else None)
    for block in blocks:
        checkpoint_forward(block, options)
    make_none_in_training(root)
    return model


def _untouched(model: nn.Module) -> nn.Module:
    """What is inside all wrappers; refused where a plan is applied to it already."""
    root = unwrapped(model)
    if any(is_checkpointed(module) for module in root.modules()):
        raise ConfigError("a plan is applied to this model already: take it back with memfit.plan.applying.undo(model) first")
    return root


def _refuse_another_depth(policy: CheckpointingPolicy, planned: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Lists that hold no planned unit may be of any length."""
    for name in sorted({unit.rpartition(".")[0] for unit in (*policy.units, *policy.untouched)}):
        if planned.get(name) != found.get(name):
            raise ConfigError(
                f"the plan was made for a model with {planned.get(name, 'no')} modules in {name or 'its list'}, and this one has "
                f"{found.get(name, 'none')} there: make one for this model, with memfit plan"
            )


def _refuse_more_units(policy: CheckpointingPolicy, known: Mapping[str, nn.Module]) -> None:
    """A plan that says which units it leaves as they are has looked at all that are alike in a list: the list is as long here."""
    if not policy.untouched:
        return
    named = {*policy.units, *policy.untouched}
    looked_at = {(name.rpartition(".")[0], _kind(known[name])) for name in named if name.rpartition(".")[2].isdecimal()}
    more = [
        name
        for name, module in known.items()
        if name not in named and name.rpartition(".")[2].isdecimal() and (name.rpartition(".")[0], _kind(module)) in looked_at
    ]
    if more:
        raise ConfigError(
            f"the plan was made for a model without {', '.join(more[:3])}{' and more' if len(more) > 3 else ''}: make one for this "
            "model, with memfit plan"
        )


def _kind(module: nn.Module) -> tuple[object, ...]:
    return type(module), *(tuple(parameter.shape) for parameter in module.parameters())


def undo(model: Model) -> Model:
    """Takes back what ``apply_policy`` did."""
    for module in unwrapped(model).modules():
        if is_checkpointed(module):
            restore_forward(module)
    make_as_before(unwrapped(model))
    return model
