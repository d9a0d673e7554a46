"""The moment at which a program first calls a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from memfit.torch_compat.patches import Patches


def at_first_call(action: Callable[[], None]) -> None:
    """Calls ``action`` right before the first call of any module."""
    patches = Patches("memfit watch").because("when the program first calls a module")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # torch's profiler takes the module from ``self``
            patches.undo()
            action()
            return self(*args, **kwargs)

        return call

    patches.wrap(nn.Module, "__call__", make)
