"""What a script sets for all of torch: defaults, which are put back, and inference mode, which is seen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.devices import default_device_context
from memfit.torch_compat.fake_tensors import LOGGER_NAME, SUBCLASSES_MODULE
from memfit.torch_compat.patches import Patches


def install_defaults(patches: Patches) -> None:
    _keep_defaults(patches)
    # A shape that does not fit is the user's own error, which is raised; torch would also log it.
    patches.replace(logging.getLogger(LOGGER_NAME), "disabled", True)
    # Libraries ask whether they are being traced, and take another path if so.
    patches.replace(SUBCLASSES_MODULE, "FakeTensor", _NeverSeen)


def _keep_defaults(patches: Patches) -> None:
    """A script may set defaults; they are its own."""
    dtype, grad_enabled, context = torch.get_default_dtype(), torch.is_grad_enabled(), default_device_context()
    patches.finally_call(lambda: torch.set_default_dtype(dtype))
    patches.finally_call(lambda: torch.set_grad_enabled(grad_enabled))
    measures_kernels = torch.backends.cudnn.benchmark

    def restore_measuring() -> None:
        if torch.backends.cudnn.benchmark != measures_kernels:  # a script may have frozen torch's flags
            torch.backends.cudnn.benchmark = measures_kernels

    patches.finally_call(restore_measuring)

    def restore_device() -> None:
        if default_device_context() is not context:
            torch.set_default_device(context.device if context is not None else None)

    patches.finally_call(restore_device)


class _NeverSeen:
    """No tensor is one of these."""


# -- inference mode is seen like no_grad, operator by operator ---------------------------------------------------------------
#
# In inference mode torch hands operators on as they were called, without autograd's layer, in which they come apart into those that
# take memory: ``conv2d`` would be seen, and neither ``convolution`` nor its workspace.


def install_inference(patches: Patches) -> None:
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
