"""CUDA's side of torch: streams, profilers, compilers of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.cuda import jiterator

from memfit.torch_compat.versions import need

TORCH_C: Any = torch._C
"""The module in which torch's Python asks its C++ for the current stream and the accelerator."""

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


def raw_stream_getter(device: torch.device) -> Callable[[], int] | None:
    """A cheap reading of the current CUDA stream; ``None`` where there are no streams."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    get_raw_stream = need(torch._C, "_cuda_getCurrentRawStream")
    index = device.index or 0
    return lambda: int(get_raw_stream(index))
