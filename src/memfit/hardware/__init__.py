"""GPUs: those that memfit knows, and those that users describe.

::

    gpu.py         a GPU: memory, peaks, links; all that are known, from data/gpus.toml
    names.py       which one is meant by what was written
    described.py   24GiB, RTX-4090=48GiB, A100-80GB=0.5, H100 MIG 3g.40gb, my-card.toml

Every GPU has a name by which ``find_gpu`` finds it again, in another process too.
"""

from __future__ import annotations

from memfit.hardware.gpu import (
    GIGA,
    GPUS_PER_NODE,
    MOST_GPUS,
    NCCL_ONCE_BYTES,
    PEER_BYTES,
    TERA,
    Gpu,
    gpus,
    known_gpus,
    least_gpu,
    load_gpus,
)
from memfit.hardware.names import find_gpu

__all__ = [
    "GIGA",
    "GPUS_PER_NODE",
    "MOST_GPUS",
    "NCCL_ONCE_BYTES",
    "PEER_BYTES",
    "TERA",
    "Gpu",
    "find_gpu",
    "gpus",
    "known_gpus",
    "least_gpu",
    "load_gpus",
]
