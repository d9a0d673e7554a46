"""What a GPU says about itself: ``torch.cuda.get_device_properties()``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, NoReturn

from memfit.phantom.target import Target
from memfit.units import KIB

_SHARED_KIB = {(7, 0): (96, 96), (7, 5): (64, 64), (8, 0): (164, 163), (9, 0): (228, 227), (10, 0): (228, 227)}
"""Shared memory of a multiprocessor, and the most a block can ask for: the CUDA guide's table of compute capabilities."""

_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
"""Threads of a multiprocessor where they are not 2048: the same table."""


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """Under torch's names. What memfit does not know of a GPU is missing, and says so."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    L2_cache_size: int
    uuid: uuid.UUID
    pci_bus_id: int
    gcnArchName: str
    shared_memory_per_block: int = 48 * KIB
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @classmethod
    def of(cls, target: Target, index: int) -> DeviceProperties:
        shared, optin = _SHARED_KIB.get(target.capability, (100, 99))
        return cls(
            name=device_name(target),
            major=target.capability[0],
            minor=target.capability[1],
            total_memory=target.gpu.usable_bytes,
            multi_processor_count=target.gpu.num_sms,
            max_threads_per_multi_processor=_THREADS.get(target.capability, 2048),
            shared_memory_per_multiprocessor=shared * KIB,
            shared_memory_per_block_optin=optin * KIB,
            L2_cache_size=target.gpu.l2_cache_bytes,
            uuid=uuid.UUID(int=index),
            pci_bus_id=index,
            gcnArchName=target.gpu.arch,
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"memfit does not know {name!r} of a {self.__dict__.get('name', 'GPU')}")


def device_name(target: Target) -> str:
    return f"NVIDIA {target.gpu.name}" if target.gpu.arch.startswith("sm_") else f"AMD {target.gpu.name}"


class DeviceContext:
    """``with torch.cuda.device(1):``. Sub-classed for each world, with its own ``current``."""

    current: Any

    def __init__(self, device: Any) -> None:
        self.idx = self.current.index_of(device) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = self.current.current_device()
        if self.idx >= 0:
            self.current.set_device(self.idx)

    def __exit__(self, *exception: Any) -> None:
        self.current.set_device(self.prev_idx)
