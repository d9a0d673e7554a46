"""What decides what a call does, as far as it can be compared."""

from __future__ import annotations

import random
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from memfit.phantom.tensors.tensor_annotations import CHOICES, CONSTANT, HOST_DATA, SHARE
from memfit.phantom.torch_cuda.autocast import CastCache
from memfit.predict.run.windows import NotRepeatableError, RunReason
from memfit.torch_compat.dispatch import tree_leaves, tree_map
from memfit.torch_compat.dynamo import is_compiled
from memfit.torch_compat.fsdp import facts_of_units

VECTOR_BYTES: Final = 64
"""No kernel reads more than this at a time, so it cannot tell finer alignments of a tensor's first byte apart."""
PLAIN: Final = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)
_MANY: Final = (list, tuple, dict, set, deque)
_PLAIN_TYPES: Final = frozenset(PLAIN)
_TYPES_OF_MANY: Final = frozenset((*_MANY, OrderedDict))
_FEW: Final = 64
"""Containers with more values are data: they are compared by their length."""
_GENERATORS: Final = (random.Random, np.random.Generator, np.random.RandomState)


@dataclass(frozen=True, eq=False)
class Key:
    """What decides a call."""

    state: tuple[Any, ...]
    """What must be after the call as it was before; the modules' own comes last."""
    family: tuple[Any, ...]
    """All but the sizes of arguments."""
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, state: tuple[Any, ...], beside: tuple[Any, ...]) -> Key:
        kinds, sizes = family_of(state[0])
        return cls(state, (kinds, state[1:], beside), sizes)

    @property
    def kin(self) -> tuple[Any, ...]:
        """The family without the plain attributes of modules, but with their modes and hooks."""
        kinds, (*others, modules), beside = self.family
        own = tuple((*each[:2], *(fact for fact in each[2] if fact[0] == "training" or "hooks" in fact[0])) for each in modules)
        return (kinds, tuple(others), own, beside)


def modules_of(module: nn.Module) -> list[nn.Module]:
    """What ``module.modules()`` has, in its order: asked for in every call, and without a generator for each module."""
    found: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            waiting += [child for child in reversed([*each._modules.values()]) if child is not None]
    return list(found.values())


def parameters_of(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    """Each of their parameters once, as ``module.parameters()`` has them."""
    own = (parameter for module in modules for parameter in module._parameters.values() if parameter is not None)
    return list({id(parameter): parameter for parameter in own}.values())


def state_of_call(modules: Sequence[nn.Module], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The arguments' structure, shapes, types and plain values; autocast; every module's plain attributes, number of hooks,
    parameters and their types."""
    leaves = tuple(_of_value(leaf) for leaf in tree_leaves((args, kwargs)))
    structure = str(tree_map(lambda leaf: None, (args, kwargs)))
    return (leaves, structure, _modes(), state_of_modules(modules))


def state_of_modules(modules: Sequence[nn.Module]) -> tuple[Any, ...]:
    """What of them decides a call."""
    seen: dict[int, Any] = {}
    found = [_of_module(each, seen) for each in modules]
    for place, facts in facts_of_units(modules).items():
        own = found[place]
        found[place] = (*own[:2], (*own[2], ("FSDP2", facts)))
    return tuple(found)


def state_of_surroundings(modules: Sequence[nn.Module]) -> tuple[Any, ...]:
    """What a call may read, and change, beside what is given to it: Python's and numpy's random numbers, also those of generators
    that modules or the files of their classes hold; plain values in these files, and in small containers of both."""
    files = {id(file): file for module in modules for file in [getattr(type(module).forward, "__globals__", {})]}
    plain = tuple(value for file in files.values() for value in file.values() if type(value) in _PLAIN_TYPES)
    holders = [*files.values(), *(vars(module) for module in modules)]
    generators = {id(value): value for holder in holders for value in holder.values() if isinstance(value, _GENERATORS)}
    inside = tuple(_plain_values_in(value) for holder in holders for value in holder.values() if type(value) in _TYPES_OF_MANY)
    return plain, inside, _place_of(random), _place_of(np.random), *(_place_of(generator) for generator in generators.values())


def _plain_values_in(container: Any) -> tuple[Any, ...]:
    if len(container) > _FEW:
        return (len(container),)
    return tuple(
        value for value in (container.values() if isinstance(container, dict) else container) if type(value) in _PLAIN_TYPES
    )


def _place_of(generator: Any) -> Any:
    if generator is random or isinstance(generator, random.Random):
        return generator.getstate()
    state = generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state(legacy=False)
    return str(state)


def kept_casts(casts: CastCache) -> tuple[int, ...]:
    """The leaves whose casts are kept."""
    return tuple(casts.entries)


def gradients_of(parameters: Sequence[torch.Tensor]) -> bytes:
    """Of each parameter: is it trained, and has it a gradient?"""
    return bytes(2 * parameter.requires_grad + (parameter.grad is not None) for parameter in parameters)


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
    )


@dataclass(frozen=True)
class TensorKey:
    """What of a tensor decides."""

    kind: Any
    """Its type, the number of its dimensions, what is known of its values."""
    sizes: tuple[int, ...]
    """Shape, strides, offset and the bytes of the storage."""

    def family(self) -> tuple[Any, tuple[int, ...]]:
        """What it has in common with tensors of other sizes, and its own sizes. Pieces of a batch are alike, wherever they lie."""
        dims = (len(self.sizes) - 2) // 2
        shape, stride, (offset, size_bytes) = self.sizes[:dims], self.sizes[dims : 2 * dims], self.sizes[-2:]
        dense, step = [], 1
        for size in reversed(shape):
            dense.append(step)
            step *= size
        if stride != tuple(reversed(dense)):
            return (self.kind, "strided"), self.sizes
        if size_bytes == step * self.kind[2].itemsize:
            return (self.kind, "whole"), shape
        return (self.kind, "part", gcd(offset * self.kind[2].itemsize, VECTOR_BYTES)), shape


def family_of(leaves: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """What arguments have in common with others that differ in sizes alone, and their own sizes."""
    kinds: list[Any] = []
    sizes: list[int] = []
    for leaf in leaves:
        if isinstance(leaf, TensorKey):
            kind, own = leaf.family()
            kinds.append(kind)
            sizes += own
        else:
            kinds.append(leaf)
    return tuple(kinds), tuple(sizes)


def _of_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.requires_grad:
            raise NotRepeatableError(RunReason.ARGUMENTS)
        notes = vars(value)
        has_data = notes.get(HOST_DATA) is not None
        # A number such as Trainer's count of the batch's tokens decides only where it is read, and readings follow that.
        decisive = (CHOICES, SHARE) if has_data and not value.dim() else (CONSTANT, CHOICES, SHARE)
        known = (has_data, *(repr(notes.get(note)) for note in decisive))
        kind = (type(value), value.dim(), value.dtype, value.device, known)
        return TensorKey(kind, (*value.shape, *value.stride(), int(value.storage_offset()), int(value.untyped_storage().nbytes())))
    if isinstance(value, PLAIN):
        return (type(value), value)
    raise NotRepeatableError(RunReason.ARGUMENTS)


def _of_module(module: nn.Module, seen: dict[int, Any]) -> tuple[Any, ...]:
    parameters = tuple((id(parameter), parameter.dtype) for parameter in module._parameters.values() if parameter is not None)
    last = _LAST_READ.get(module)
    if last is not None and last.found[1] == parameters and last.holds(vars(module), seen):
        return last.found
    if is_compiled(module):
        raise NotRepeatableError(RunReason.COMPILED)  # watching it would change what is compiled
    found = (id(module), parameters, _plain_attributes(vars(module), seen))
    _LAST_READ[module] = _LastReading(vars(module), found)
    return found


class _LastReading:
    """What was read of a module, and what tells that its attributes are what they were. It keeps none of them alive that is more
    than a plain value."""

    __slots__ = ("_ids", "_lengths", "_many", "_names", "_others", "_plain", "_types", "found")

    def __init__(self, attributes: dict[str, Any], found: tuple[Any, ...]) -> None:
        self.found = found
        self._names, self._types, self._ids = _identities(attributes)
        self._plain = [value for value in attributes.values() if isinstance(value, PLAIN)]  # held, so that their ids stay theirs
        self._many = [name for name, value in attributes.items() if isinstance(value, _MANY)]
        self._lengths = [len(attributes[name]) for name in self._many]
        self._others = [(name, fact) for name, fact in found[2] if not isinstance(attributes[name], (*PLAIN, *_MANY))]

    def holds(self, attributes: dict[str, Any], seen: dict[int, Any]) -> bool:
        return (
            (self._names, self._types, self._ids) == _identities(attributes)
            and self._lengths == [len(attributes[name]) for name in self._many]
            and all(_fact(attributes[name], seen) == fact for name, fact in self._others)
        )


def _identities(attributes: dict[str, Any]) -> tuple[tuple[str, ...], tuple[type, ...], tuple[int, ...]]:
    values = attributes.values()
    return tuple(attributes), tuple(map(type, values)), tuple(map(id, values))


_LAST_READ: weakref.WeakKeyDictionary[nn.Module, _LastReading] = weakref.WeakKeyDictionary()


def _plain_attributes(attributes: dict[str, Any], seen: dict[int, Any] | None) -> tuple[tuple[str, Any], ...]:
    """Plain values and lengths, the number of hooks too; of other objects, a configuration for one, their own plain attributes.

    ``seen`` has those of objects that many modules share, by identity; without it, objects are not looked into.
    """
    facts = ((name, _fact(value, seen)) for name, value in attributes.items())
    return tuple((name, fact) for name, fact in facts if fact is not _NOTHING)


def _fact(value: Any, seen: dict[int, Any] | None) -> Any:
    """What of an attribute's value is compared; ``_NOTHING`` where it is not."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind in _TYPES_OF_MANY:
        return len(value)
    if seen is not None and (known := seen.get(id(value))) is not None:  # a configuration that all modules share
        return known
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, _MANY):
        return len(value)
    if isinstance(value, torch.Tensor):
        return (id(value), value.dtype)
    if seen is not None and not isinstance(value, (nn.Module, type)) and hasattr(value, "__dict__"):
        found = seen[id(value)] = _plain_attributes(vars(value), None)
        return found
    return _NOTHING


_NOTHING: Final = object()
