"""The host's side of CUDA: pinned memory, generators, pointers, compiling, and torch's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memfit.phantom.assumptions import Assumptions
from memfit.phantom.replacing import Replacements
from memfit.phantom.torch_private import FakeTensor, default_device_context

_PINNED = "_memfit_is_pinned"


def install(replacements: Replacements, assumptions: Assumptions) -> None:
    _keep_defaults(replacements)
    replacements.attribute(torch.Tensor, "pin_memory", _pin_memory)
    replacements.attribute(torch.Tensor, "is_pinned", lambda tensor, device=None: getattr(tensor, _PINNED, False))
    replacements.attribute(torch.Tensor, "record_stream", lambda tensor, stream: None)
    replacements.attribute(FakeTensor, "data_ptr", _address)
    replacements.attribute(torch.UntypedStorage, "data_ptr", _storage_address(torch.UntypedStorage.data_ptr))
    # Libraries ask whether they are being traced, and take another way if so.
    replacements.attribute(torch._subclasses, "FakeTensor", _NeverSeen)
    replacements.attribute(torch, "Generator", Generator)
    replacements.attribute(torch, "compile", _run_eagerly(assumptions))
    replacements.attribute(torch, "save", _save_nothing(assumptions))
    replacements.attribute(nn.Module, "compile", lambda module, *args, **kwargs: _note_eager(assumptions))


def _keep_defaults(replacements: Replacements) -> None:
    """A script may set defaults; they are its own."""
    dtype, grad_enabled, context = torch.get_default_dtype(), torch.is_grad_enabled(), default_device_context()
    replacements.finally_call(lambda: torch.set_default_dtype(dtype))
    replacements.finally_call(lambda: torch.set_grad_enabled(grad_enabled))

    def restore_device() -> None:
        if default_device_context() is not context:
            torch.set_default_device(context.device if context is not None else None)

    replacements.finally_call(restore_device)


def _save_nothing(assumptions: Assumptions) -> Callable[..., None]:
    """Saving takes no memory of a GPU: torch copies one storage after the other to the host. There are no data to write, and an
    empty file might be taken for a checkpoint."""

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        assumptions.add("torch.save was passed over: it would have written a file, and taken nothing of the GPU")

    return save


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    if getattr(tensor, _PINNED, False):
        return tensor
    pinned = tensor.clone()
    setattr(pinned, _PINNED, True)
    return pinned


class _NeverSeen:
    """No tensor is one of these."""


def _address(tensor: torch.Tensor) -> int:
    start = tensor.untyped_storage().data_ptr()
    return start + int(tensor.storage_offset()) * tensor.element_size() if start else 0


def _storage_address(ask: Callable[[torch.UntypedStorage], int]) -> Callable[[torch.UntypedStorage], int]:
    def data_ptr(storage: torch.UntypedStorage) -> int:
        """Not an address of anything, but as good as one for telling tensors apart, which is what it is mostly asked for."""
        if storage.device.type != "meta":
            return ask(storage)
        return storage._cdata if storage.nbytes() else 0

    return data_ptr


class Generator(torch._C.Generator):
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


def _run_eagerly(assumptions: Assumptions) -> Callable[..., Any]:
    def compile_nothing(model: Any = None, **kwargs: Any) -> Any:
        _note_eager(assumptions)
        return model if model is not None else lambda function: function

    return compile_nothing


def _note_eager(assumptions: Assumptions) -> None:
    assumptions.add("torch.compile was passed over: the prediction is of the eager code")
