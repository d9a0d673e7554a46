"""Classes of tensors and parameters that a library makes for itself (``torch.Tensor._make_subclass``, ``as_subclass``).

A tensor without data is of a class of its own already, and torch gives no tensor two. Here the two classes become one:

::

    bitsandbytes.nn.Params4bit ─┐
                                ├─> Params4bit, without data      isinstance of both; its methods are those of the library's class
    FakeTensor ─────────────────┘

While an operator runs, such a tensor is of the plain class: the phantom's dispatch mode sees what it knows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.phantom.tensors.mode import PhantomMode
from memfit.torch_compat.dispatch import tree_leaves, without_subclass_functions
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches

_PLAIN = (torch.Tensor, nn.Parameter)
_classes: dict[type, type] = {}


def install(patches: Patches, mode: PhantomMode) -> None:
    patches.wrap(torch.Tensor, "_make_subclass", functools.partial(_making_subclasses, mode))
    patches.wrap(torch.Tensor, "as_subclass", _taking_classes)


def of_class(data: torch.Tensor, cls: type, requires_grad: bool) -> torch.Tensor:
    """A tensor that shares the memory of ``data``, which has none, and is of a library's class."""
    return _with_class(data.detach(), cls).requires_grad_(requires_grad)


def _making_subclasses(mode: PhantomMode, make: Callable[..., Any]) -> Callable[..., Any]:
    def _make_subclass(cls: type, data: torch.Tensor, require_grad: bool = False, **kwargs: Any) -> Any:
        if cls is not nn.Parameter and issubclass(cls, nn.Parameter) and type(data) in _PLAIN:
            data = mode.from_tensor(data.detach(), static_shapes=True)  # parameters hold no data
        if cls is FakeTensor or cls is nn.Parameter or not isinstance(data, FakeTensor):
            return make(cls, data, require_grad, **kwargs)
        return of_class(data, cls, require_grad)

    return _make_subclass


def _taking_classes(as_subclass: Callable[..., Any]) -> Callable[..., Any]:
    def take(tensor: torch.Tensor, cls: type) -> Any:
        if not isinstance(tensor, FakeTensor):
            return as_subclass(tensor, cls)
        with without_subclass_functions():
            plain = tensor.view_as(tensor)
        return plain if cls is torch.Tensor else _with_class(plain, cls)

    return take


def _with_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    tensor.__class__ = _without_data(cls)
    return tensor


def _without_data(cls: type) -> type:
    """The class of tensors that are both."""
    if issubclass(cls, FakeTensor):
        return cls
    if cls not in _classes:
        body = {"__torch_dispatch__": classmethod(_as_plain), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        kind: Any = type(cls)
        made = _classes[cls] = kind(cls.__name__, (cls, FakeTensor), body)
        # Torch has switched it off, because the class sees operators.
        made.__torch_function__ = inspect.getattr_static(cls, "__torch_function__")
    return _classes[cls]


def _as_plain(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Asked where all arguments are of such classes: otherwise the phantom's mode has answered."""
    kwargs = kwargs or {}
    odd = [
        (value, type(value))
        for value in tree_leaves((args, kwargs))
        if isinstance(value, FakeTensor) and type(value) is not FakeTensor
    ]
    for value, _ in odd:
        value.__class__ = FakeTensor
    try:
        return func(*args, **kwargs)
    finally:
        for value, kind in odd:
            value.__class__ = kind
