"""CUDA's caching allocator: its settings in the environment, its history, its figures, and the note attached to each entry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from memfit.torch_compat.versions import need

_C: Any = torch._C

VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Where PyTorch looks for the settings, in its order: the first that is set counts, even if it is empty.

Source: ``CUDAAllocatorConfig::instance`` in c10/cuda/CUDAAllocatorConfig.h of torch 2.13.
"""


def alloc_conf_of_environment(environment: Mapping[str, str] = os.environ) -> str:
    """The settings that a run in this environment gets; an empty string where it sets none."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


def keeps_history() -> bool:
    """Is this a torch with CUDA, and with the allocator that keeps a history?"""
    return hasattr(_C, "_cuda_memorySnapshot") and torch.cuda.is_available() and _C._cuda_getAllocatorBackend() == "native"


def is_kept_by_somebody() -> bool:
    """Is the history being kept already?"""
    if not torch.cuda.is_initialized():  # there is no allocator yet, and torch would follow a pointer to none
        return False
    return bool(_C._cuda_isHistoryEnabled()) if hasattr(_C, "_cuda_isHistoryEnabled") else False


def begin(max_entries: int, *, with_stacks: bool) -> None:
    """Keeps the history from now on, and forgets what there was of it."""
    need(torch.cuda.memory, "_record_memory_history")(
        "all", context="alloc" if with_stacks else None, stacks="python", max_entries=max_entries, clear_history=True
    )


def end() -> None:
    need(torch.cuda.memory, "_record_memory_history")(None)


def snapshot() -> dict[str, Any]:
    """The segments of all devices, and the history of each device since ``begin``."""
    found: dict[str, Any] = _C._cuda_memorySnapshot(None)
    return found


def statistics(device: int) -> dict[str, Any]:
    """What ``torch.cuda.memory_stats`` is made of, at a tenth of its cost."""
    found: dict[str, Any] = _C._cuda_memoryStats(device)
    return found


def note_setter() -> Callable[[str], None] | None:
    """Sets the note that each entry of the history carries from now on; ``None`` where torch has no notes."""
    return getattr(_C, "_cuda_setMemoryMetadata", None)


def current_note() -> str:
    return str(_C._cuda_getMemoryMetadata()) if hasattr(_C, "_cuda_getMemoryMetadata") else ""


def when_cuda_begins(action: Callable[[], None]) -> None:
    """Calls ``action`` as soon as the process uses CUDA; at once if it does already."""
    need(torch.cuda, "_lazy_call")(action)
