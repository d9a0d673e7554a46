"""What Inductor asks about the GPU, its libraries and its kernels, answered for the target.

Nothing is measured: where Inductor would time two ways of doing something, the rule that decides is in ``padding.py``.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch

from memfit.phantom.compile.padding import should_pad
from memfit.phantom.target import Target
from memfit.torch_compat.compiler import CURRENT_STREAM, CompilerParts
from memfit.torch_compat.patches import Patches

_ASKED_OF_TORCH_CUDA = (
    "current_device",
    "set_device",
    "device_count",
    "stream",
    "current_stream",
    "set_stream",
    "synchronize",
    "get_device_properties",
    "memory_allocated",
    "is_bf16_supported",
    "Stream",
    "Event",
    "device",
)
"""Inductor's interface to CUDA took these over from torch.cuda when it was imported."""

_DRAM_GBPS = {
    "H200": 4800,
    "H100-80GB": 3350,
    "A100-80GB": 2039,
    "A100-40GB": 1555,
    "L40S": 864,
    "L4": 300,
    "V100-16GB": 900,
    "T4": 320,
}
"""Bandwidth by GPU: NVIDIA's data sheets. Inductor compares it with the arithmetic to tell what is worth padding."""

_TENSOR_CORE_TFLOPS = {(9, 0): 989, (8, 0): 312, (8, 9): 362, (8, 6): 155, (7, 0): 125, (7, 5): 65}
"""Half precision, without sparsity, by capability: NVIDIA's data sheets."""


def install(patches: Patches, parts: CompilerParts, target: Target) -> None:
    _answer_as_cuda(patches, parts)
    for module in parts.ask_for_the_stream():
        patches.replace(module, CURRENT_STREAM, lambda device=None: torch.cuda.current_stream(device))
    for module in parts.ask_for_triton():
        patches.replace(module, "has_triton", lambda *args: True)
    patches.replace(parts.triton_questions, "triton_hash_with_backend", lambda: "never compiled")
    patches.replace(parts.cpu_vec_isa, "pick_vec_isa", lambda: parts.cpu_vec_isa.invalid_vec_isa)
    patches.replace(parts.inductor_utils, "get_device_tflops", lambda dtype: _tflops(target, dtype))
    patches.replace(parts.inductor_utils, "get_gpu_dram_gbps", lambda: _DRAM_GBPS.get(target.gpu.name, 2000))
    for name in ("get_device_tflops", "get_gpu_dram_gbps"):
        patches.replace(parts.scheduler, name, getattr(parts.inductor_utils, name))
    patches.replace(parts.pad_mm, "_should_pad", should_pad(parts))
    # The source of a template's kernel, which is loaded to be timed.
    patches.replace(parts.code_cache, "load", lambda source, *args, **kwargs: SimpleNamespace(__file__="", key=""))
    parts.forget_device()
    patches.finally_call(parts.forget_device)


def _tflops(target: Target, dtype: torch.dtype) -> float:
    half = _TENSOR_CORE_TFLOPS.get(target.capability, 989)
    if dtype in (torch.float16, torch.bfloat16):
        return half
    return half / 2 if torch.backends.cuda.matmul.allow_tf32 else half / 16


def _answer_as_cuda(patches: Patches, parts: CompilerParts) -> None:
    interface = parts.cuda_interface
    for name in _ASKED_OF_TORCH_CUDA:
        if hasattr(interface, name) and hasattr(torch.cuda, name):
            answer = getattr(torch.cuda, name)
            patches.replace(interface, name, answer if isinstance(answer, type) else staticmethod(answer))
    others: dict[str, Any] = {
        "get_raw_stream": lambda index=0: 0,
        "exchange_device": lambda index: index,
        "maybe_exchange_device": lambda index: index,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
    }
    for name, answer in others.items():
        patches.replace(interface, name, staticmethod(answer))
    patches.replace(torch.cuda, "_DeviceGuard", lambda index: contextlib.nullcontext())
