"""What cannot be had without a GPU: an error that names it and says what to do, in place of a wrong answer or a crash.

::

    tensor.__dlpack__, __cuda_array_interface__      another library would follow the pointer
    a queue or pipe to another process               CUDA's handles for that come from the driver
    kernel[grid](...)                                Triton compiles for the GPU it finds
    torch.utils.cpp_extension.load(["kernel.cu"])    nvcc's output runs on a GPU only
    torch.cuda.current_blas_handle(), ...            handles of libraries that are not loaded
    deepspeed.initialize(...)                        its engine partitions in C++ and CUDA

Operators of which torch has no shape function are refused in ``tensors/mode.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

from memfit.errors import NeedsGpuError
from memfit.torch_compat.cuda import jit_compilers
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches

_FSDP = (
    "What DeepSpeed's ZeRO stages keep on a GPU, FSDP keeps too: predict the script with FSDP in place of it, as accelerate and "
    "the Trainer of transformers have it."
)
_PLAIN = "Switch to an implementation in plain PyTorch for the prediction"


def install(patches: Patches) -> None:
    _refuse_pointers(patches)
    _refuse_other_processes(patches)
    _refuse_handles(patches)
    patches.when_imported("triton.runtime.jit", lambda triton: _refuse_launches(patches, triton.JITFunction))
    patches.when_imported("triton.runtime.autotuner", lambda triton: _refuse_launches(patches, triton.Autotuner))
    patches.when_imported("torch.utils.cpp_extension", lambda module: _refuse_extensions(patches, module))
    patches.when_imported(
        "deepspeed", lambda module: patches.replace(module, "initialize", refusing("deepspeed.initialize", _FSDP))
    )


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


def _refuse_launches(patches: Patches, kind: Any) -> None:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> NoReturn:
        while hasattr(kernel, "fn"):
            kernel = kernel.fn
        refuse(
            f"the Triton kernel {kernel.__name__}",
            f"{_PLAIN}, or make it a custom operator that says what it returns (torch.library.custom_op with register_fake).",
        )

    patches.replace(kind, "run", run)


def _refuse_extensions(patches: Patches, module: Any) -> None:
    """Compiling would take minutes, and lead nowhere."""
    load, load_inline = module.load, module.load_inline
    advice = f"{_PLAIN}, or register its operators with torch.library and say what they return (register_fake)."

    def checked_load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        if kwargs.get("with_cuda") or any(str(file).endswith((".cu", ".cuh")) for file in files):
            refuse(f"the CUDA extension {name}", advice)
        return load(name, sources, *args, **kwargs)

    def checked_load_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cuda_sources or kwargs.get("with_cuda"):
            refuse(f"the CUDA extension {name}", advice)
        return load_inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    patches.replace(module, "load", checked_load)
    patches.replace(module, "load_inline", checked_load_inline)
