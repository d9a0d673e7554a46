"""Dynamo, as far as code that is not compiled has to know of it."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from torch import nn

from memfit.torch_compat.versions import need_in


def need_everything() -> None:
    """Asks for each part that this file uses only where it is wanted."""
    need_in("torch._dynamo.eval_frame", "_is_in_optimized_module", "OptimizedModule")
    need_in("torch._C._dynamo.eval_frame", "set_eval_frame", "_FrameAction", "_FrameExecStrategy")
    need_in("torch._dynamo.types", "ConvertFrameReturn")


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


# -- Python's frames -------------------------------------------------------------------------------------------------------------


class _Thing:
    pass


def runs_frames_itself() -> bool:
    """Does Python run functions, and not Dynamo?

    Python hands arguments over to a function that it runs itself. Where Dynamo looks at every frame, the caller holds on to them as
    well, so that tensors live longer.
    """
    return _is_handed_over(_Thing())


def _is_handed_over(thing: _Thing) -> bool:
    reference = weakref.ref(thing)
    del thing
    return reference() is None


def stop_looking_at_frames(at_most: int) -> None:
    """Ends what Dynamo begins when it compiles, and does not end when that raises an error (seen in torch 2.11 to 2.15).

    It counts how many threads compile; an error leaves the count one too high. The count goes down where a callback is taken away.
    A frame that only runs code that is compiled already has one without having been counted: taking that away corrects the count.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is None:
        return
    actions, result = frames._FrameAction, sys.modules["torch._dynamo.types"].ConvertFrameReturn

    def only_run(*args: Any) -> Any:
        return result(frame_exec_strategy=frames._FrameExecStrategy(actions.DEFAULT, actions.RUN_ONLY))

    for _ in range(at_most):
        if runs_frames_itself():
            return
        before = frames.set_eval_frame(only_run)
        _take_callback_away(frames)
        frames.set_eval_frame(before)


def _take_callback_away(frames: Any) -> None:
    frames.set_eval_frame(None)
