"""``torch.inference_mode()`` takes the memory that ``torch.no_grad()`` takes, and is that in the phantom world.

In inference mode torch hands operators on as they were called, without autograd's layer, in which they come apart into those that
take memory: ``conv2d`` would be seen, and neither ``convolution`` nor its workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.wrap(torch.inference_mode, "__enter__", _enter)
    patches.wrap(torch.inference_mode, "__exit__", _leave)


def _enter(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def enter(context: Any) -> None:
        context.gradients_before = torch.is_grad_enabled()
        torch.set_grad_enabled(not context.mode)

    return enter


def _leave(original: Callable[..., None]) -> Callable[..., None]:
    def leave(context: Any, *error: Any) -> None:
        if not hasattr(context, "gradients_before"):
            original(context, *error)  # it was entered outside
        else:
            torch.set_grad_enabled(context.gradients_before)

    return leave
