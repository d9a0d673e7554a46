"""``torch.cuda``, answering for a GPU that is not there.

What concerns memory is asked of a ``Meter``, which the prediction supplies; everything else follows from the target.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from memfit.phantom import streams
from memfit.phantom.replacing import Replacements
from memfit.phantom.target import Target


class Meter(Protocol):
    """Knows what the simulated allocator holds."""

    def statistics(self) -> dict[str, int]:
        """As ``torch.cuda.memory_stats()``, for the run so far."""

    def reset_peak(self) -> None:
        """Peaks count from now on."""


class CudaModule:
    """The functions of ``torch.cuda`` under their own names."""

    Stream, Event, StreamContext = streams.Stream, streams.Event, streams.StreamContext
    stream = staticmethod(streams.StreamContext)
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.default_stream)
    set_stream = staticmethod(streams.set_stream)

    def __init__(self, target: Target, meter: Meter, num_devices: int, device: int) -> None:
        self._target = target
        self._meter = meter
        self._num_devices = num_devices
        self._device = device
        self.default_generators = tuple(torch.Generator() for _ in range(num_devices))

    # -- the device ----------------------------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None: ...

    def _lazy_init(self) -> None: ...

    def _is_compiled(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._num_devices

    def current_device(self) -> int:
        return self._device

    def set_device(self, device: Any) -> None:
        self._device = self._index(device)

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = self._device
        if device is not None and self._index(device) >= 0:
            self._device = self._index(device)
        try:
            yield
        finally:
            self._device = before

    def device_of(self, tensor: torch.Tensor) -> Any:
        return self.device(tensor.device.index if tensor.is_cuda else None)

    def _index(self, device: Any) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(device).index if device is not None else None
        return self._device if index is None else index

    def get_device_name(self, device: Any = None) -> str:
        return f"NVIDIA {self._target.gpu.name}"

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self._target.capability

    def get_device_properties(self, device: Any = None) -> Any:
        major, minor = self._target.capability
        return SimpleNamespace(
            name=self.get_device_name(),
            major=major,
            minor=minor,
            total_memory=self._target.gpu.usable_bytes,
            multi_processor_count=self._target.gpu.num_sms,
            warp_size=32,
            is_integrated=False,
            is_multi_gpu_board=False,
        )

    def get_arch_list(self) -> list[str]:
        return [self._target.gpu.arch]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return including_emulation or self._target.capability >= (8, 0)

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        return True

    # -- time ----------------------------------------------------------------------------------------------------------------

    def synchronize(self, device: Any = None) -> None: ...

    def is_current_stream_capturing(self) -> bool:
        return False

    def ipc_collect(self) -> None: ...

    def utilization(self, device: Any = None) -> int:
        return 100

    # -- random numbers ------------------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def seed(self) -> None: ...

    def seed_all(self) -> None: ...

    def initial_seed(self) -> int:
        return 0

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state() for _ in range(self._num_devices)]

    def set_rng_state(self, new_state: torch.Tensor, device: Any = "cuda") -> None: ...

    def set_rng_state_all(self, new_states: Any) -> None: ...

    # -- memory --------------------------------------------------------------------------------------------------------------

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return self._meter.statistics()

    def memory_allocated(self, device: Any = None) -> int:
        return self._meter.statistics()["allocated_bytes.all.current"]

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._meter.statistics()["allocated_bytes.all.peak"]

    def memory_reserved(self, device: Any = None) -> int:
        return self._meter.statistics()["reserved_bytes.all.current"]

    def max_memory_reserved(self, device: Any = None) -> int:
        return self._meter.statistics()["reserved_bytes.all.peak"]

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self._meter.reset_peak()

    def reset_max_memory_allocated(self, device: Any = None) -> None:
        self._meter.reset_peak()

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._meter.statistics().items())

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        gpu = self._target.gpu
        return max(0, gpu.usable_bytes - gpu.context_bytes - self.memory_reserved()), gpu.usable_bytes

    def empty_cache(self) -> None: ...

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None: ...


def install(replacements: Replacements, module: CudaModule, target: Target) -> None:
    """Puts the answers where scripts and torch itself look for them."""
    for name in (name for name in dir(module) if not name.startswith("__") and name not in vars(module)):
        replacements.attribute(torch.cuda, name, getattr(module, name))
        if name in vars(torch.cuda.memory):
            replacements.attribute(torch.cuda.memory, name, getattr(module, name))
    replacements.attribute(torch.cuda, "default_generators", module.default_generators)
    replacements.attribute(torch._C, "_cuda_getCurrentRawStream", streams.current_stream_number)
    replacements.attribute(torch.version, "cuda", f"{target.build[2:4]}.{target.build[4:]}")
    for name in ("range_push", "range_pop", "mark"):
        replacements.attribute(torch.cuda.nvtx, name, _nothing)
    _install_libraries(replacements, target)
    _install_accelerator(replacements, module)


def _install_libraries(replacements: Replacements, target: Target) -> None:
    major, minor, patch = target.cudnn
    replacements.attribute(torch.backends.cudnn, "is_available", lambda: True)
    replacements.attribute(torch.backends.cudnn, "version", lambda: major * 10000 + minor * 100 + patch)
    replacements.attribute(torch.backends.cuda, "is_built", lambda: True)


def _install_accelerator(replacements: Replacements, module: CudaModule) -> None:
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": module.device_count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": module.current_device,
        "current_device_idx": module.current_device,
        "set_device_index": module.set_device,
        "set_device_idx": module.set_device,
        "current_stream": module.current_stream,
        "set_stream": module.set_stream,
        "synchronize": module.synchronize,
        "get_device_capability": module.get_device_capability,
        "empty_cache": module.empty_cache,
        "memory_stats": module.memory_stats,
        "memory_allocated": module.memory_allocated,
        "max_memory_allocated": module.max_memory_allocated,
        "memory_reserved": module.memory_reserved,
        "max_memory_reserved": module.max_memory_reserved,
        "reset_peak_memory_stats": module.reset_peak_memory_stats,
    }
    replacements.attribute(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    for name, answer in answers.items():
        if hasattr(torch.accelerator, name):
            replacements.attribute(torch.accelerator, name, answer)


def _nothing(*args: Any, **kwargs: Any) -> None: ...
