"""Tools around CUDA: markers and profilers that find nothing to do, sensors that have nothing to measure, pools, NCCL's version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from memfit.phantom.passthrough.refusals import refuse
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.cuda import ProfilerBase
from memfit.torch_compat.patches import Patches

NCCL_VERSION = (2, 28, 9)
"""Of torch 2.11.0+cu130."""

_BUSY = {"utilization": 100, "memory_usage": 50, "temperature": 60, "power_draw": 500_000, "clock_rate": 1500}
"""Per cent, per cent, degrees, milliwatts, megahertz: a GPU at work."""

_SNAPSHOT = "torch.cuda.memory's history and snapshots were passed over: the ledger has all of it (memfit export)"
_POOLS = "memory pools were passed over: their blocks are served from the common one"


def install(patches: Patches, assumptions: Assumptions) -> None:
    for name, value in _BUSY.items():
        patches.replace(torch.cuda, name, lambda device=None, value=value: value)
    patches.replace(torch.cuda, "cudart", Runtime)
    patches.replace(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
    patches.replace(torch.cuda.nccl, "is_available", lambda tensors: True)
    for name in ("set_sync_debug_mode", "check_error"):
        patches.replace(torch.cuda, name, _nothing)
    patches.replace(torch.cuda, "get_sync_debug_mode", lambda: 0)
    _install_markers(patches)
    _install_history(patches, assumptions)
    _install_pools(patches, assumptions)


def _install_markers(patches: Patches) -> None:
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.replace(torch.cuda.nvtx, name, _zero)
    for name in ("start", "stop"):
        patches.replace(torch.cuda.profiler, name, _nothing)
    patches.replace(torch.autograd.profiler, "emit_nvtx", _NoMarkers)
    profile = ProfilerBase.__init__

    def profile_the_host(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        """CUDA's own profiler would complain of its absence at every operator."""
        profile(self, activities=[torch.profiler.ProfilerActivity.CPU], **kwargs)

    patches.replace(ProfilerBase, "__init__", profile_the_host)


def _install_history(patches: Patches, assumptions: Assumptions) -> None:
    def snapshot(*args: Any, **kwargs: Any) -> dict[str, Any]:
        assumptions.add(_SNAPSHOT)
        return {"segments": [], "device_traces": [], "allocator_settings": {}}

    def dump(*args: Any, **kwargs: Any) -> None:
        assumptions.add(_SNAPSHOT)

    patches.replace(torch.cuda.memory, "_record_memory_history", dump)
    patches.replace(torch.cuda.memory, "_snapshot", snapshot)
    patches.replace(torch.cuda.memory, "_dump_snapshot", dump)
    for module in (torch.cuda, torch.cuda.memory):
        patches.replace(module, "memory_snapshot", lambda *args, **kwargs: snapshot()["segments"])


def _install_pools(patches: Patches, assumptions: Assumptions) -> None:
    class MemPool:
        """A pool of its own, as far as anybody can see."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            assumptions.add(_POOLS)
            self.id, self.allocator = (0, 1), None

        def use_count(self) -> int:
            return 1

        def snapshot(self, *args: Any, **kwargs: Any) -> list[Any]:
            return []

    @contextlib.contextmanager
    def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
        yield

    for module in (torch.cuda, torch.cuda.memory):
        patches.replace(module, "MemPool", MemPool)
        patches.replace(module, "use_mem_pool", use_mem_pool)


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


class _NoMarkers(contextlib.nullcontext[None]):
    """``torch.autograd.profiler.emit_nvtx``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0
