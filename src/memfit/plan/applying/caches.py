"""Caches of keys and values that a layer is given: filled in forward, and not once more when the layer is computed again.

::

    forward          | layer(x, past_key_values=cache) ──> its keys and values are in the cache, for whoever generates with it
    computed again   | layer(x, past_key_values=the cache as it was before) ──> the same keys and values, in a copy that is dropped

Models of transformers make such a cache in every forward unless ``use_cache=False``, in training too. What other layers have put
into it is not needed to compute a layer again, and is not held for it.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch


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
