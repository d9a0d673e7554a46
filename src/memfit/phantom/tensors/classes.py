"""``type(p)`` of a tensor without data, as code that asks for it sees it: ``nn.Parameter``, ``torch.Tensor``, a library's class.

::

    type(x) is torch.Tensor            in the script, and in modules that know torch and compare: ``type`` is ``TYPE`` there
    type(p)(data, requires_grad=True)  where ``type`` is Python's own: the class of tensors without data makes a parameter

A tensor without data is of a class of its own in C++. Python's ``type`` cannot be told otherwise, but a module may have a ``type``
of its own, which goes before Python's.
"""

from __future__ import annotations

import builtins
import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches

_COMPARES = re.compile(r"(?<![\w.])type\([^()]*\)+\s*(?:\.__name__|is\b|in\b|not\b|==|!=)|(?:is|==|!=|in)\s+type\(")
_OWN = ("torch", "memfit", "numpy", "pytest", "_pytest")
"""Packages that have to know what a tensor is, or never ask."""


class SeenType:
    """Stands for Python's ``type`` in a module: the class of a tensor without data is the one that it stands for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1:
            return builtins.type(*args, **kwargs)
        kind = builtins.type(args[0])
        if kind is builtins.type:
            return self
        if not issubclass(kind, FakeTensor):
            return kind
        if kind is not FakeTensor:
            return kind.__bases__[0]  # a library's class, made one with that of tensors without data
        return nn.Parameter if isinstance(args[0], nn.Parameter) else torch.Tensor

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, builtins.type)

    def __subclasscheck__(self, subclass: Any) -> bool:
        return issubclass(subclass, builtins.type)

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return (builtins.type,)

    def __getattr__(self, name: str) -> Any:
        return getattr(builtins.type, name)

    def __getitem__(self, item: Any) -> Any:
        return builtins.type[item]

    def __or__(self, other: Any) -> Any:
        return builtins.type | other

    def __ror__(self, other: Any) -> Any:
        return other | builtins.type

    def __eq__(self, other: object) -> bool:
        return other is self or other is builtins.type

    def __hash__(self) -> int:
        return hash(builtins.type)

    def __repr__(self) -> str:
        return repr(builtins.type)


TYPE = SeenType()


def install(patches: Patches) -> None:
    patches.replace(FakeTensor, "__new__", staticmethod(_also_by_call(FakeTensor.__new__)))
    for module in list(sys.modules.values()):
        _tell(patches, module)
    patches.wrap(runpy, "_run_code", functools.partial(_telling_main, patches))
    patches.after_imports(_may_ask, lambda module: _tell(patches, module))


def _also_by_call(make: Callable[..., Any]) -> Callable[..., Any]:
    def __new__(cls: type, given: Any = None, *args: Any, **kwargs: Any) -> Any:
        """``type(p)(data, requires_grad=True, **p.__dict__)`` makes what ``p`` is; all others know a mode."""
        if not isinstance(given, torch.Tensor) or args:
            return make(cls, given, *args, **kwargs)
        requires_grad = kwargs.get("requires_grad")
        return given if requires_grad is None else nn.Parameter(given, requires_grad)

    return __new__


def _may_ask(name: str) -> bool:
    return name.partition(".")[0] not in _OWN and name.partition(".")[0] not in sys.stdlib_module_names


def _tell(patches: Patches, module: Any) -> None:
    """Gives a module a ``type`` of its own, if it knows torch and asks."""
    if not isinstance(module, ModuleType) or not _may_ask(module.__name__) or "type" in vars(module):
        return
    if any(_is_torchs(value) for value in list(vars(module).values())) and _compares(getattr(module, "__file__", None)):
        patches.replace_item(vars(module), "type", TYPE)


def _telling_main(patches: Patches, run_code: Callable[..., Any]) -> Callable[..., Any]:
    """For how Python runs a script: it has its ``type`` from the beginning."""

    def _run_code(code: Any, run_globals: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        patches.replace_item(run_globals, "type", TYPE)
        return run_code(code, run_globals, *args, **kwargs)

    return _run_code


def _is_torchs(value: Any) -> bool:
    return value is torch or value is nn or value is torch.Tensor or value is nn.Parameter


@functools.cache
def _compares(file: str | None) -> bool:
    """True if the source compares types; read once, since every prediction asks for all modules."""
    if file is None or not file.endswith(".py"):
        return False
    try:
        return _COMPARES.search(Path(file).read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
