"""Dynamo, as far as code that is not compiled has to know of it."""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

from memfit.torch_compat.versions import need_in


def need_everything() -> None:
    """Asks for each part that this file uses only where it is wanted."""
    need_in("torch._dynamo.eval_frame", "_is_in_optimized_module", "OptimizedModule")


def is_in_compiled_module() -> bool:
    """Does this happen inside a module that ``torch.compile`` made?"""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and bool(frames._is_in_optimized_module())


def is_compiled(module: nn.Module) -> bool:
    """Is it what ``torch.compile(module)`` gave, or was ``module.compile()`` called?"""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(module, "_compiled_call_impl", None) is not None or (
        frames is not None and isinstance(module, frames.OptimizedModule)
    )


_TRACERS = ("torch._functorch._aot_autograd", "torch._functorch.aot_autograd", "torch._higher_order_ops", "torch._dynamo")
"""Modules that ask for gradients to write a graph of backward, not to train anything."""


def is_traced_by(frame: FrameType) -> bool:
    """Does torch itself ask, to see what backward would do?"""
    return str(frame.f_globals.get("__name__", "")).startswith(_TRACERS)
