"""What a driver would tell: sensors of a GPU at work, NCCL's version, the CUDA runtime."""

from __future__ import annotations

from typing import Any

import torch

from memfit.phantom.passthrough.refusals import refuse
from memfit.torch_compat.patches import Patches

NCCL_VERSION = (2, 28, 9)
"""Of torch 2.11.0+cu130."""

_BUSY = {"utilization": 100, "memory_usage": 50, "temperature": 60, "power_draw": 500_000, "clock_rate": 1500}
"""Per cent, per cent, degrees, milliwatts, megahertz: a GPU at work."""


def install(patches: Patches) -> None:
    for name, value in _BUSY.items():
        patches.replace(torch.cuda, name, lambda device=None, value=value: value)
    patches.replace(torch.cuda, "cudart", Runtime)
    patches.replace(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    patches.replace(torch.cuda.nccl, "is_available", lambda tensors: True)
    for name in ("set_sync_debug_mode", "check_error"):
        patches.replace(torch.cuda, name, lambda *args, **kwargs: None)
    patches.replace(torch.cuda, "get_sync_debug_mode", lambda: 0)


class Runtime:
    """``torch.cuda.cudart()``: what scripts call of it by name succeeds, the rest needs a driver."""

    class cudaError:
        success = 0

    def cudaProfilerStart(self) -> int:
        return 0

    def cudaProfilerStop(self) -> int:
        return 0

    def cudaHostRegister(self, *args: Any) -> int:
        return 0

    def cudaHostUnregister(self, *args: Any) -> int:
        return 0

    def cudaMemGetInfo(self, device: Any = None) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)

    def __getattr__(self, name: str) -> Any:
        refuse(f"torch.cuda.cudart().{name}", "Leave the call out of the prediction.")
