"""The host's side of CUDA: generators, and torch's defaults."""

from __future__ import annotations

import logging
from typing import Any

import torch

from memfit.torch_compat.defaults import default_device_context
from memfit.torch_compat.fake_tensors import LOGGER_NAME, SUBCLASSES_MODULE
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.tensors import GeneratorBase


def install(patches: Patches) -> None:
    _keep_defaults(patches)
    # A shape that does not fit is the user's own error, which is raised; torch would also log it.
    patches.replace(logging.getLogger(LOGGER_NAME), "disabled", True)
    patches.replace(torch.Tensor, "record_stream", lambda tensor, stream: None)
    # Libraries ask whether they are being traced, and take another way if so.
    patches.replace(SUBCLASSES_MODULE, "FakeTensor", _NeverSeen)
    patches.replace(torch, "Generator", Generator)


def _keep_defaults(patches: Patches) -> None:
    """A script may set defaults; they are its own."""
    dtype, grad_enabled, context = torch.get_default_dtype(), torch.is_grad_enabled(), default_device_context()
    patches.finally_call(lambda: torch.set_default_dtype(dtype))
    patches.finally_call(lambda: torch.set_grad_enabled(grad_enabled))

    def restore_device() -> None:
        if default_device_context() is not context:
            torch.set_default_device(context.device if context is not None else None)

    patches.finally_call(restore_device)


class _NeverSeen:
    """No tensor is one of these."""


class _AnyGenerator(type(GeneratorBase)):  # type: ignore[misc]
    """Torch's own generators are generators too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, GeneratorBase)


class Generator(GeneratorBase, metaclass=_AnyGenerator):  # type: ignore[misc]
    """A generator for any device; the numbers of the phantom GPU are never drawn."""

    _named: torch.device

    def __new__(cls, device: Any = "cpu") -> Generator:
        made: Generator = super().__new__(cls, "cpu")
        made._named = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:
        return self._named
