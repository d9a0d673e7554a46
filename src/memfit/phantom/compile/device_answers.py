"""What Inductor asks about the GPU, its libraries and its kernels, answered for the target.

Nothing is measured: where Inductor would time two ways of doing something, the rule that decides is in ``padding.py``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from memfit.phantom.compile.padding import should_pad
from memfit.phantom.target import Target
from memfit.torch_compat.compiler import CompilerParts
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


def install(patches: Patches, parts: CompilerParts, target: Target) -> None:
    _answer_as_cuda(patches, parts)
    for module in parts.ask_for_triton():
        patches.replace(module, "has_triton", lambda *args: True)
    patches.replace(parts.triton_questions, "triton_hash_with_backend", lambda: "never compiled")
    patches.replace(parts.cpu_vec_isa, "pick_vec_isa", lambda: parts.cpu_vec_isa.invalid_vec_isa)
    patches.replace(parts.pad_mm, "_should_pad", should_pad(target))
    parts.forget_device()
    patches.finally_call(parts.forget_device)


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
