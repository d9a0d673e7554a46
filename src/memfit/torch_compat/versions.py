"""Which releases of torch memfit works with, and how it asks for a part that torch does not promise.

Every such part is asked for with ``need``, which raises ``UnsupportedTorchError`` where it is missing, and remembered in ``PARTS``:
``memfit doctor`` prints them, and ``tests/torch_compat`` exercises each.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from memfit.errors import UnsupportedTorchError
from memfit.torch_versions import TorchVersion

OLDEST, NEWEST = (2, 11), (2, 15)
"""The releases of torch that memfit is tested with, both included. README, docs and the package's metadata say the same."""

PARTS: dict[str, str] = {}
"""The private parts found so far: ``torch._C._swap_tensor_impl`` -> the module of memfit that asked for it."""


def installed_torch() -> tuple[int, int]:
    """``(2, 13)`` for torch 2.13.0+cpu."""
    return TorchVersion.parse(torch.__version__).release


def is_supported() -> bool:
    """Is the installed torch one of those that memfit is tested with?"""
    return OLDEST <= installed_torch() <= NEWEST


def need(owner: Any, name: str) -> Any:
    """``owner.name``, or an error that names it."""
    return _need(owner, name, sys._getframe(1).f_globals["__name__"])


def need_in(module: str, *paths: str) -> None:
    """Asks for parts that are used by name, or only where they are wanted: ``need_in("torch.x", "Class._method")``."""
    asked_by = sys._getframe(1).f_globals["__name__"]
    for path in paths:
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = _need(owner, part, asked_by)
        _need(owner, name, asked_by)


def _need(owner: Any, name: str, asked_by: str) -> Any:
    found = getattr(owner, name, None)
    path = f"{getattr(owner, '__name__', owner)}.{name}"
    if found is None:
        raise UnsupportedTorchError(path, torch.__version__)
    PARTS[path] = asked_by
    return found
