"""What cannot be had without a GPU: an error that names it and says what to do, in place of a wrong answer or a crash.

::

    tensor.__dlpack__, __cuda_array_interface__      another library would follow the pointer
    a queue or pipe to another process               CUDA's handles for that come from the driver
    torch.cuda.current_blas_handle(), ...            handles of libraries that are not loaded

Operators of which torch has no shape function are refused in ``tensors/mode.py``. Kernels of other libraries than torch, Triton's
among them, are passed over or replaced in ``libraries/``.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

from memfit.errors import NeedsGpuError
from memfit.torch_compat.devices import jit_compilers
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches

_PLAIN = "Switch to an implementation in plain PyTorch for the prediction"


def install(patches: Patches) -> None:
    _refuse_pointers(patches)
    _refuse_other_processes(patches)
    _refuse_handles(patches)


def refuse(what: str, advice: str) -> NoReturn:
    raise NeedsGpuError(what, advice)


def refusing(what: str, advice: str) -> Callable[..., NoReturn]:
    return lambda *args, **kwargs: refuse(what, advice)


def _refuse_pointers(patches: Patches) -> None:
    advice = "Copy the tensor to the host first, with .cpu(), or do the work in PyTorch."

    def interface(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:
            refuse("__cuda_array_interface__", advice)
        raise AttributeError("__cuda_array_interface__")

    patches.replace(FakeTensor, "__cuda_array_interface__", property(interface))
    for name in ("__dlpack__", "__dlpack_device__"):
        patches.replace(FakeTensor, name, _on_the_host(getattr(torch.Tensor, name), advice))
    to_dlpack = _on_the_host(getattr(torch, "to_dlpack"), advice)  # noqa: B009 (torch's types do not know it)
    for module in (torch, torch.utils.dlpack):
        patches.replace(module, "to_dlpack", to_dlpack)


def _on_the_host(function: Callable[..., Any], advice: str) -> Callable[..., Any]:
    """For tensors without data: those of the GPU are refused, those of the host are read as they are assumed to be."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(tensor) is not FakeTensor:
            return function(tensor, *args, **kwargs)
        if tensor.is_cuda:
            refuse("DLPack", advice)
        return function(torch.from_numpy(tensor.numpy()), *args, **kwargs)

    return call


def _refuse_other_processes(patches: Patches) -> None:
    advice = "Send tensors of the host, with .cpu(), or predict the work of one process."
    refused = refusing("sending a tensor of the GPU to another process", advice)
    patches.replace_item(ForkingPickler._extra_reducers, FakeTensor, refused)  # type: ignore[attr-defined]
    patches.replace(torch.UntypedStorage, "_share_cuda_", refused)


def _refuse_handles(patches: Patches) -> None:
    for name in ("current_blas_handle", "current_solver_handle"):
        if hasattr(torch.cuda, name):
            patches.replace(torch.cuda, name, refusing(f"torch.cuda.{name}()", f"{_PLAIN}."))
    for name in ("ExternalStream", "get_stream_from_external", "CUDAPluggableAllocator", "change_current_allocator"):
        if hasattr(torch.cuda, name):
            patches.replace(torch.cuda, name, refusing(f"torch.cuda.{name}", "Leave it out of the prediction."))
    for name in jit_compilers:
        patches.replace(torch.cuda.jiterator, name, refusing("a kernel that torch.cuda.jiterator compiles", f"{_PLAIN}."))
