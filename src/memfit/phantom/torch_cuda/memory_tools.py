"""``torch.cuda.memory``'s history, snapshots and pools, which are passed over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.patches import Patches

_SNAPSHOT = "torch.cuda.memory's history and snapshots were passed over: the ledger has all of it (memfit export)"
_POOLS = "memory pools were passed over: their blocks are served from the common one"


def install(patches: Patches, assumptions: Assumptions) -> None:
    _pass_over_history(patches, assumptions)
    _pass_over_pools(patches, assumptions)


def _pass_over_history(patches: Patches, assumptions: Assumptions) -> None:
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


def _pass_over_pools(patches: Patches, assumptions: Assumptions) -> None:
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
