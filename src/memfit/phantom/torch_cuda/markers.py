"""Markers and profilers, which find nothing to do."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from memfit.torch_compat.cuda import ProfilerBase
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.replace(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)
    for name in ("start", "stop"):
        patches.replace(torch.cuda.profiler, name, lambda: None)
    patches.replace(torch.autograd.profiler, "emit_nvtx", _NoMarkers)
    profile = ProfilerBase.__init__

    def profile_the_host(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        """CUDA's own profiler would complain of its absence at every operator."""
        profile(self, activities=[torch.profiler.ProfilerActivity.CPU], **kwargs)

    patches.replace(ProfilerBase, "__init__", profile_the_host)


class _NoMarkers(contextlib.nullcontext[None]):
    """``torch.autograd.profiler.emit_nvtx``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
