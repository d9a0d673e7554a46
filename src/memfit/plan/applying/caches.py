"""Caches of keys and values: not made in training where nobody asked for one; one that was asked for is filled once.

::

    model(x)                  | a model of transformers makes a cache in every forward, in training too, because its config says so:
                              | a model with a plan makes none then, as with transformers' own gradient checkpointing
    model(x, use_cache=True)  | forward          | layer(x, past_key_values=cache) ──> its keys and values are in the cache
                              | computed again   | layer(x, past_key_values=the cache as it was before) ──> the same keys and
                              |                  |     values, in a copy that is dropped

A cache costs the host half a millisecond for each layer that is computed again, and holds the keys and values of all layers until
the loss is known. What other layers have put into it is not needed to compute a layer again, and is not held for it.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any, Final, Self

import torch
from torch import nn

_HANDLE: Final = "memfit_caches"


def make_none_in_training(model: nn.Module) -> bool:
    """From now on no model of transformers inside makes a cache in training, unless it is called with ``use_cache`` or a cache.

    Returns true if one would.
    """
    for module in model.modules():
        if getattr(getattr(module, "config", None), "use_cache", None) is not True or _HANDLE in module.__dict__:
            continue
        names = [*inspect.signature(module.forward).parameters]
        if "use_cache" in names:
            hook = functools.partial(_without_cache, tuple(names.index(name) for name in _ASKED if name in names))
            module.__dict__[_HANDLE] = module.register_forward_pre_hook(hook, with_kwargs=True)
    return any(_HANDLE in module.__dict__ for module in model.modules())


def make_as_before(model: nn.Module) -> None:
    """Takes back what ``make_none_in_training`` did."""
    for module in model.modules():
        if _HANDLE in module.__dict__:
            module.__dict__.pop(_HANDLE).remove()


_ASKED: Final = ("use_cache", "past_key_values")
"""The arguments by which a caller asks for a cache."""


def _without_cache(places: tuple[int, ...], module: nn.Module, args: Any, kwargs: Any) -> Any:
    """``places``: where the arguments stand that ask for a cache."""
    is_asked = any(len(args) > place for place in places) or any(kwargs.get(name) is not None for name in _ASKED)
    if is_asked or not module.training or not torch.is_grad_enabled():
        return None
    return args, kwargs | {"use_cache": False}


class GivenCache:
    """Stands for a cache among the arguments of a unit, so that nothing holds the cache itself until backward."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._before: Any = None

    def __enter__(self) -> Self:
        if self._cache is not None:
            self._before = _copied(self._cache)
        return self

    def __exit__(self, *error: object) -> None:
        """The first forward is over: what it did not change is forgotten, and so is the cache."""
        if self._cache is not None:
            _forget_unchanged(self._before, self._cache)
            self._cache = None

    @property
    def now(self) -> Any:
        """In forward the cache; later, one that is as it was before."""
        return self._cache if self._cache is not None else _copied(self._before)


def is_cache(value: Any) -> bool:
    return any(kind.__name__ == "Cache" and kind.__module__.startswith("transformers.") for kind in type(value).__mro__)


def _copied(cache: Any) -> Any:
    """A copy that can be filled while the other one stays as it is; tensors are shared."""
    found = copy.copy(cache)
    for name, value in vars(cache).items():
        if isinstance(value, list):
            setattr(found, name, [copy.copy(layer) for layer in value])
        elif isinstance(value, dict):
            setattr(found, name, dict(value))
        elif is_cache(value):
            setattr(found, name, _copied(value))
    return found


def _forget_unchanged(before: Any, after: Any) -> None:
    """Takes the tensors out of all layers of ``before`` that are the same in ``after``."""
    for name, value in vars(before).items():
        if isinstance(value, list):
            for layer, same in zip(value, getattr(after, name), strict=False):
                if all(vars(same).get(key) is held for key, held in vars(layer).items()):
                    tensors = (key for key, held in vars(layer).items() if isinstance(held, torch.Tensor))
                    vars(layer).update(dict.fromkeys(tensors))
        elif is_cache(value):
            _forget_unchanged(value, getattr(after, name))
