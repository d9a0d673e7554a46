"""Runs that ran out of memory, from a few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memfit.ledger import Failure, Ledger
from memfit.testing import NS_PER_EVENT, ledger
from memfit.units import MIB

GPU_MIB = 1000

SPLIT = """
    alloc 500MiB big on cuda:0; free big
    alloc 100MiB p on cuda:0; alloc 150MiB q on cuda:0; alloc 200MiB r on cuda:0; free q
"""

TRAINING = """
    alloc 100MiB parameter layer.w on cuda:0; alloc 200MiB optimizer-state layer.w.exp on cuda:0
    step
    alloc 20MiB input tokens on cuda:0
    enter forward layer; alloc 400MiB a on cuda:0; exit
    enter backward; enter backward layer; alloc 100MiB gradient layer.w.grad on cuda:0
"""


def failed(script: str, needed_mib: int, reserved_mib: int, **more: Any) -> Ledger:
    """A run that did what ``script`` says on a GPU of 1000 MiB, then asked for more than was left."""
    done = ledger(script)
    known = {
        "message": f"CUDA out of memory. Tried to allocate {needed_mib}.00 MiB. GPU 0 has",
        "time_ns": (len(done.events) - 1) * NS_PER_EVENT,
        "device": "cuda:0",
        "op": "aten.mm.default",
        "needed_bytes": needed_mib * MIB,
        "free_bytes": (GPU_MIB - reserved_mib) * MIB,
        "total_bytes": GPU_MIB * MIB,
        "reserved_bytes": reserved_mib * MIB,
    }
    info = replace(done.info, failure=Failure(**known | more), problem="out of memory")
    return replace(done, info=info)
