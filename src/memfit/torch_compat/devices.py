"""Devices: a kind of our own (torch's PrivateUse1), CUDA's streams, profilers and compilers of kernels, and torch's defaults."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.init
import torch.optim.optimizer
import torch.utils._device
import torch.utils._foreach_utils
from torch.cuda import jiterator
from torch.utils import backend_registration

from memfit.torch_compat.versions import need, need_in

TORCH_C: Any = torch._C
"""The module in which torch's Python asks its C++ for the current stream and the accelerator, and finds its readers and writers."""
need_in(TORCH_C.__name__, "PyTorchFileReader", "PyTorchFileWriter")

KERNEL_QUESTIONS = {
    "_can_use_flash_attention": "flash",
    "_can_use_mem_efficient_attention": "efficient",
    "_can_use_cudnn_attention": "cudnn",
}
"""By which torch's Python asks whether a kernel would take a call of attention."""
need_in(TORCH_C.__name__, *KERNEL_QUESTIONS)

ProfilerBase: Any = need(torch.profiler.profiler, "_KinetoProfile")
"""What every profiler of torch is; it asks CUDA's own for help if it is told to."""

is_cudnn_enabled: Callable[[], bool] = need(torch._C, "_get_cudnn_enabled")

jit_compilers: list[str] = [name for name in ("_create_jit_fn", "_create_multi_output_jit_fn") if hasattr(jiterator, name)]
"""How kernels are made from source; without them there is nothing to refuse."""


REMEMBER_THE_GPU = (
    "torch.cuda",
    "torch.overrides",
    "torch.utils._triton",
    "torch._utils",
    "torch.nn.attention._fa3",
    "torch.nn.attention._fa4",
    "torch.nn.attention.varlen",
    "accelerate.utils.imports",
    "transformers.utils.import_utils",
)
"""Modules with functions that ask about the GPU once and keep the answer."""


def chosen_cublas_workspace() -> int | None:
    """Bytes that the environment says for cuBLAS: ``:4096:8`` is eight times 4096 KiB. ``None`` where it says nothing."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * int(count) for size, count in pairs) * 1024 if pairs else None


def chosen_cublaslt_workspace() -> int | None:
    """The same for cuBLASLt, which the environment says in KiB."""
    chosen = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return int(chosen) * 1024 if chosen.isdecimal() else None


def raw_stream_getter(device: torch.device) -> Callable[[], int] | None:
    """A cheap reading of the current CUDA stream; ``None`` where there are no streams."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    get_raw_stream = need(torch._C, "_cuda_getCurrentRawStream")
    index = device.index or 0
    return lambda: int(get_raw_stream(index))


register_python_backend: Callable[..., None] = need(backend_registration, "_setup_privateuseone_for_python_backend")
"""Makes the PrivateUse1 device usable from Python: autograd then accepts its tensors on any build of torch."""

BackendHooks: Any = need(backend_registration, "_DummyPrivateUse1Hook")
BackendGuard: Any = need(backend_registration, "_DummyDeviceGuard")
private_backend_name: Callable[[], str] = need(torch._C, "_get_privateuse1_backend_name")


choose_attention: Callable[..., int] = need(torch, "_fused_sdp_choice")
"""The number of the attention kernel that torch would run for queries, keys and values."""

factory_functions: Callable[[], set[Any]] = need(torch.utils._device, "_device_constructors")
"""The functions that follow a default device; torch asks once and keeps the answer."""

DefaultDevice: Any = need(torch.utils._device, "DeviceContext")
"""The function mode that gives factory functions a device."""

optimizer_foreach_types: list[type] = need(sys.modules["torch.optim.optimizer"], "_foreach_supported_types")
"""The types of parameters for which optimizers choose their foreach form."""

clipping_foreach_types: list[type] = need(torch.utils._foreach_utils, "_foreach_supported_types")
"""The same, for gradient clipping."""

INITIALISATION = torch.nn.init
TRUNCATED_NORMAL = "_no_grad_trunc_normal_"
"""The function that ``trunc_normal_`` calls."""


def default_device_context() -> Any:
    """What ``torch.set_default_device`` left, ``None`` if nothing."""
    return getattr(need(torch, "_GLOBAL_DEVICE_CONTEXT"), "device_context", None)
