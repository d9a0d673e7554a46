"""Units: the modules whose parameters are gathered and freed together, and whose activations can be recomputed together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from memfit.choices import KEPT_OPERATORS
from memfit.errors import ConfigError
from memfit.torch_compat.autograd import contexts_that_keep
from memfit.torch_compat.fsdp import checkpoint_wrapper

Policy = Callable[[nn.Module], bool]
Units = type[nn.Module] | str | Sequence[type[nn.Module] | str] | int | Policy | None
"""Module classes or their names, the fewest parameters a unit has, a policy, or ``None`` for the repeated blocks."""

_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)


def find_units(model: nn.Module, units: Units) -> list[nn.Module]:
    """The units below the model, outer before inner; the model itself is always one more."""
    match units:
        case None:
            return repeated_blocks(model)
        case bool():
            raise ConfigError(f"units takes module classes, a number of parameters or a policy, not {units}")
        case int():
            return _large_enough(model, units)
        case type() | str():
            return _of_classes(model, (units,))
        case Sequence():
            return _of_classes(model, units)
        case _ if callable(units):
            return _chosen(model, units)
    raise ConfigError(f"units takes module classes, a number of parameters or a policy, not {units!r}")


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the module list with the most parameters, and similar blocks in other lists, as in encoder-decoder models."""
    lists = [found for found in model.modules() if isinstance(found, nn.ModuleList | nn.Sequential) and len(found) > 1]
    if not lists:
        return []
    # Of lists with equally many parameters the inner one: a Sequential that holds nothing but a ModuleList adds nothing.
    largest = max(reversed(lists), key=_count)
    kinds = {type(block) for block in largest if _count(block)}
    blocks = {block for each in lists if isinstance(each, type(largest)) for block in each if type(block) in kinds}
    return _chosen(model, blocks.__contains__)


def _of_classes(model: nn.Module, wanted: Sequence[type[nn.Module] | str]) -> list[nn.Module]:
    classes = tuple(each for each in wanted if isinstance(each, type))
    names = {each for each in wanted if isinstance(each, str)}
    found = _chosen(model, lambda module: isinstance(module, classes) or type(module).__name__ in names)
    missing = names - {type(module).__name__ for module in found}
    missing |= {each.__name__ for each in classes if not any(isinstance(module, each) for module in found)}
    if missing:
        has = ", ".join(sorted({type(module).__name__ for module in _below(model)}))
        raise ConfigError(f"units names {', '.join(sorted(missing))}, which this model does not have; it has {has}")
    return found


def _large_enough(model: nn.Module, fewest: int) -> list[nn.Module]:
    """From the inside out: a module is a unit if it is large enough without the units inside it."""
    if fewest < 1:
        raise ConfigError(f"units={fewest}: a unit has at least one parameter")
    taken: set[nn.Parameter] = set()
    units: set[nn.Module] = set()
    for module in reversed(list(_below(model))):
        left = [parameter for parameter in module.parameters() if parameter not in taken]
        if sum(parameter.numel() for parameter in left) >= fewest and not isinstance(module, _NEVER_CALLED):
            units.add(module)
            taken.update(left)
    return _chosen(model, units.__contains__)


def _chosen(model: nn.Module, policy: Policy) -> list[nn.Module]:
    return [module for module in _below(model) if _count(module) and policy(module)]


def _below(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if module is not model)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def replace_modules(model: nn.Module, patches: dict[nn.Module, nn.Module]) -> None:
    """Replaces modules in every place where they occur."""
    for parent in _distinct(model.modules()):
        if parent in patches.values():
            continue
        for name, child in list(parent._modules.items()):
            if child in patches:
                setattr(parent, name, patches[child])


def _distinct(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return list(dict.fromkeys(modules))


@runtime_checkable
class Applied(Protocol):
    """Something that changes a model itself: a ``memfit.Plan``."""

    def apply_to(self, model: nn.Module) -> Any: ...


Checkpointing = str | Callable[..., CheckpointPolicy | bool] | Applied | None
"""``"full"``, ``"selective"``, one of torch's selective checkpoint policies, a plan, or ``None`` for none."""

SAVED_OPS = frozenset(functools.reduce(getattr, name.split("."), torch.ops) for name in KEPT_OPERATORS)


save_the_slow = functools.partial(contexts_that_keep, SAVED_OPS)
"""Makes the contexts of ``"selective"``, as ``torch.utils.checkpoint`` takes them."""


def check_checkpointing(given: Checkpointing) -> None:
    if isinstance(given, str) and given not in ("full", "selective"):
        raise ConfigError(f"checkpointing={given!r}: say 'full', 'selective', None, or give a policy")
    if given is not None and not isinstance(given, str | Applied) and not callable(given):
        raise ConfigError(f"checkpointing takes 'full', 'selective', None, a policy or a plan, not {given!r}")


def checkpoint_units(model: nn.Module, units: Sequence[nn.Module], how: Checkpointing) -> list[nn.Module]:
    """Wraps each unit in place; returns the units as they are now."""
    if how is None:
        return list(units)
    if isinstance(how, Applied):
        how.apply_to(model)  # a plan has units of its own, and changes them where they stand
        return list(units)
    made = save_the_slow if how == "selective" else functools.partial(create_selective_checkpoint_contexts, how)
    options = {} if how == "full" else {"context_fn": made}
    wrapped = {unit: checkpoint_wrapper(unit, **options) for unit in units}
    replace_modules(model, wrapped)
    return [wrapped[unit] for unit in units]
