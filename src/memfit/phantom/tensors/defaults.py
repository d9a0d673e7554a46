"""Defaults that a script sets are put back; and no library takes the prediction for a compiler at work."""

from __future__ import annotations

import logging

import torch

from memfit.torch_compat.defaults import default_device_context
from memfit.torch_compat.fake_tensors import LOGGER_NAME, SUBCLASSES_MODULE
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
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
