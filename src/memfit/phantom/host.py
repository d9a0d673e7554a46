"""The host's side of CUDA: generators, and torch's defaults."""

from __future__ import annotations

import logging
from typing import Any

import torch

from memfit.phantom.replacing import Replacements
from memfit.phantom.torch_private import default_device_context


def install(replacements: Replacements) -> None:
    _keep_defaults(replacements)
    # A shape that does not fit is the user's own error, which is raised; torch would also log it.
    replacements.attribute(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
    replacements.attribute(torch.Tensor, "record_stream", lambda tensor, stream: None)
    # Libraries ask whether they are being traced, and take another way if so.
    replacements.attribute(torch._subclasses, "FakeTensor", _NeverSeen)
    replacements.attribute(torch, "Generator", Generator)


def _keep_defaults(replacements: Replacements) -> None:
    """A script may set defaults; they are its own."""
    dtype, grad_enabled, context = torch.get_default_dtype(), torch.is_grad_enabled(), default_device_context()
    replacements.finally_call(lambda: torch.set_default_dtype(dtype))
    replacements.finally_call(lambda: torch.set_grad_enabled(grad_enabled))

    def restore_device() -> None:
        if default_device_context() is not context:
            torch.set_default_device(context.device if context is not None else None)

    replacements.finally_call(restore_device)


class _NeverSeen:
    """No tensor is one of these."""


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """Torch's own generators are generators too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """A generator for any device; the numbers of the phantom GPU are never drawn."""

    _named: torch.device

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        made._named = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._named
