"""What cannot be had without a GPU: an error that names it and says what to do, in place of a wrong answer or a crash.

::

    tensor.__dlpack__, __cuda_array_interface__      another library would follow the pointer
    a queue or pipe to another process               CUDA's handles for that come from the driver
    kernel[grid](...)                                Triton compiles for the GPU it finds
    torch.utils.cpp_extension.load(["kernel.cu"])    nvcc's output runs on a GPU only
    torch.cuda.current_blas_handle(), ...            handles of libraries that are not loaded
    schedule.step() of a pipeline                    a stage asks its neighbours for shapes

Operators of which torch has no shape function are refused in ``fake.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

from memfit.errors import NeedsGpuError
from memfit.phantom.replacing import Replacements
from memfit.phantom.torch_private import FakeTensor, jit_compilers

_PLAIN = "Switch to an implementation in plain PyTorch for the prediction"


def install(replacements: Replacements) -> None:
    _refuse_pointers(replacements)
    _refuse_other_processes(replacements)
    _refuse_handles(replacements)
    replacements.when_imported("triton.runtime.jit", lambda triton: _refuse_launches(replacements, triton.JITFunction))
    replacements.when_imported("triton.runtime.autotuner", lambda triton: _refuse_launches(replacements, triton.Autotuner))
    replacements.when_imported("torch.distributed.pipelining.schedules", lambda module: _refuse_pipelines(replacements, module))
    replacements.when_imported("torch.utils.cpp_extension", lambda module: _refuse_extensions(replacements, module))


def refuse(what: str, advice: str) -> NoReturn:
    raise NeedsGpuError(what, advice)


def refusing(what: str, advice: str) -> Callable[..., NoReturn]:
    return lambda *args, **kwargs: refuse(what, advice)


def _refuse_pointers(replacements: Replacements) -> None:
    advice = "Copy the tensor to the host first, with .cpu(), or do the work in PyTorch."

    def interface(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:
            refuse("__cuda_array_interface__", advice)
        raise AttributeError("__cuda_array_interface__")

    replacements.attribute(FakeTensor, "__cuda_array_interface__", property(interface))
    for name in ("__dlpack__", "__dlpack_device__"):
        replacements.attribute(FakeTensor, name, _on_the_host(getattr(torch.Tensor, name), advice))
    to_dlpack = _on_the_host(getattr(torch, "to_dlpack"), advice)  # noqa: B009 (torch's types do not know it)
    for module in (torch, torch.utils.dlpack):
        replacements.attribute(module, "to_dlpack", to_dlpack)


def _on_the_host(function: Callable[..., Any], advice: str) -> Callable[..., Any]:
    """For tensors without data: those of the GPU are refused, those of the host are read as they are assumed to be."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(tensor) is not FakeTensor:
            return function(tensor, *args, **kwargs)
        if tensor.is_cuda:
            refuse("DLPack", advice)
        return function(torch.from_numpy(tensor.numpy()), *args, **kwargs)

    return call


def _refuse_other_processes(replacements: Replacements) -> None:
    advice = "Send tensors of the host, with .cpu(), or predict the work of one process."
    refused = refusing("sending a tensor of the GPU to another process", advice)
    replacements.item(ForkingPickler._extra_reducers, FakeTensor, refused)  # type: ignore[attr-defined]
    replacements.attribute(torch.UntypedStorage, "_share_cuda_", refused)


def _refuse_handles(replacements: Replacements) -> None:
    for name in ("current_blas_handle", "current_solver_handle"):
        if hasattr(torch.cuda, name):
            replacements.attribute(torch.cuda, name, refusing(f"torch.cuda.{name}()", f"{_PLAIN}."))
    for name in ("ExternalStream", "get_stream_from_external", "CUDAPluggableAllocator", "change_current_allocator"):
        if hasattr(torch.cuda, name):
            replacements.attribute(torch.cuda, name, refusing(f"torch.cuda.{name}", "Leave it out of the prediction."))
    for name in jit_compilers:
        replacements.attribute(torch.cuda.jiterator, name, refusing("a kernel that torch.cuda.jiterator compiles", f"{_PLAIN}."))


def _refuse_launches(replacements: Replacements, kind: Any) -> None:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> NoReturn:
        while hasattr(kernel, "fn"):
            kernel = kernel.fn
        refuse(
            f"the Triton kernel {kernel.__name__}",
            f"{_PLAIN}, or make it a custom operator that says what it returns (torch.library.custom_op with register_fake).",
        )

    replacements.attribute(kind, "run", run)


def _refuse_pipelines(replacements: Replacements, module: Any) -> None:
    advice = (
        "A stage learns its shapes from its neighbours: predict a stage as a model of its own, once for each microbatch in flight."
    )
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        replacements.attribute(getattr(module, name), "step", refusing("a pipeline schedule", advice))


def _refuse_extensions(replacements: Replacements, module: Any) -> None:
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

    replacements.attribute(module, "load", checked_load)
    replacements.attribute(module, "load_inline", checked_load_inline)
