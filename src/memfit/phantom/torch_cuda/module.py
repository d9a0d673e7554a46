"""``torch.cuda``, answering for a GPU that is not there.

What concerns memory is asked of a ``Meter``, which the prediction supplies; everything else follows from the target.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from memfit.phantom.device import streams
from memfit.phantom.device.device_alias import INNER, OUTER, own
from memfit.phantom.device.generators import Generator
from memfit.phantom.device.properties import DeviceContext, DeviceProperties, device_name
from memfit.phantom.target import Target
from memfit.torch_compat.compiler import is_constant
from memfit.torch_compat.devices import TORCH_C
from memfit.torch_compat.patches import Patches
from memfit.units import MIB


class Meter(Protocol):
    """Knows what the simulated allocator holds."""

    def statistics(self) -> dict[str, int]:
        """As ``torch.cuda.memory_stats()``, for the run so far."""

    def reset_peak(self) -> None:
        """Peaks count from now on."""

    def reset_accumulated(self) -> None:
        """So do sums of what was allocated and freed."""

    def configure(self, settings: str) -> None:
        """The run sets the allocator up: ``settings`` as in ``PYTORCH_CUDA_ALLOC_CONF``."""

    def used_on(self, tensor: torch.Tensor, stream: int) -> None:
        """The memory of a tensor, once freed, comes back only when what is on this stream then is done."""


NO_SUCH_GPU = "there is no GPU"
"""How a question about a GPU that the process does not see is answered."""


class CudaModule:
    """The functions of ``torch.cuda`` under their own names; what ``torch.cuda`` has no name for is ours."""

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
        self._fraction = 1.0
        self._raw: dict[int, torch.Tensor] = {}
        self.default_generators = tuple(Generator(f"cuda:{index}") for index in range(num_devices))
        self.device = type("device", (DeviceContext,), {"current": self})
        self.device_of = type("device_of", (self.device,), {"__init__": _enter_device_of})

        @is_constant  # no method: Dynamo of torch 2.11 takes no object for a constant argument
        def get_device_properties(device: Any = None) -> Any:
            return DeviceProperties.of(target, self.index_of(device))

        self.get_device_properties = get_device_properties

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
        index = self.index_of(device)
        if index >= self._num_devices:
            raise RuntimeError(f"{NO_SUCH_GPU} cuda:{index}: this process sees {self._num_devices} of them")
        self._device = self._device if index < 0 else index

    def index_of(self, device: Any) -> int:
        if isinstance(device, int):
            return device if device != 0 else int(own(torch.device(OUTER, 0)).index)
        index = torch.device(device).index if device is not None else None
        return self._device if index is None else index

    def get_device_name(self, device: Any = None) -> str:
        return device_name(self._target)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self._target.capability

    def get_arch_list(self) -> list[str]:
        return [self._target.gpu.arch]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return including_emulation or self._target.capability >= (8, 0)

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        return True

    # -- time ----------------------------------------------------------------------------------------------------------------

    synchronize = staticmethod(streams.synchronize)

    def is_current_stream_capturing(self) -> bool:
        return False

    def ipc_collect(self) -> None: ...

    # -- random numbers ------------------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        self._generator("cuda").manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.default_generators:
            generator.manual_seed(int(seed))

    def seed(self) -> None: ...

    def seed_all(self) -> None: ...

    def initial_seed(self) -> int:
        return int(self._generator("cuda").initial_seed())

    def get_rng_state(self, device: Any = "cuda") -> torch.Tensor:
        return self._generator(device).get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self.default_generators]

    def set_rng_state(self, new_state: torch.Tensor, device: Any = "cuda") -> None:
        self._generator(device).set_state(new_state)

    def set_rng_state_all(self, new_states: Any) -> None:
        for generator, state in zip(self.default_generators, new_states, strict=False):
            generator.set_state(state)

    def _generator(self, device: Any) -> Generator:
        return self.default_generators[self.index_of(device)]

    # -- memory --------------------------------------------------------------------------------------------------------------

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return self._meter.statistics()

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        return _nested(self._meter.statistics())

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

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        self._meter.reset_accumulated()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        gpu = self._target.gpu
        return max(0, gpu.usable_bytes - gpu.context_bytes - self.memory_reserved()), gpu.usable_bytes

    def empty_cache(self) -> None: ...

    def device_memory_used(self, device: Any = None) -> int:
        free, total = self.mem_get_info()
        return total - free

    def list_gpu_processes(self, device: Any = None) -> str:
        return (
            f"GPU:{self.index_of(device)}\nprocess {os.getpid():>10d} uses {self.device_memory_used() / MIB:>12.3f} MB GPU memory"
        )

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"a share of the GPU's memory is from 0 to 1, not {fraction}")
        self._fraction = float(fraction)
        self._meter.configure(f"per_process_memory_fraction:{max(self._fraction, 1e-6)}")

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        return self._fraction

    def _set_allocator_settings(self, env: str) -> None:
        self._meter.configure(env)

    def get_allocator_backend(self) -> str:
        return "native"

    def host_memory_stats(self) -> dict[str, int]:
        return {}

    def host_memory_stats_as_nested_dict(self) -> dict[str, Any]:
        return {}

    def reset_peak_host_memory_stats(self) -> None: ...

    def reset_accumulated_host_memory_stats(self) -> None: ...

    def caching_allocator_alloc(self, size: int, device: Any = None, stream: Any = None) -> int:
        taken = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", self.index_of(device)))
        self._raw[taken.data_ptr()] = taken
        return taken.data_ptr()

    def caching_allocator_delete(self, mem_ptr: int) -> None:
        self._raw.pop(mem_ptr, None)

    def caching_allocator_enable(self, value: bool = True) -> None: ...

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """As ``tensor.record_stream(stream)``."""
        self._meter.used_on(tensor, stream.stream_id)


def install(patches: Patches, module: CudaModule, target: Target) -> None:
    """Puts the answers where scripts and torch itself look for them."""
    for name in (*vars(CudaModule), "default_generators", "device", "device_of", "get_device_properties"):
        for part in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.graphs):
            if name in vars(part) and not name.startswith("__"):
                patches.replace(part, name, getattr(module, name))
    patches.replace(TORCH_C, "_cuda_getCurrentRawStream", streams.PrivatePool.stream_number)
    patches.replace(torch.Tensor, "record_stream", lambda tensor, stream: module.record_stream(tensor, stream))
    ask = torch.get_device_module
    ours = ask(INNER)
    patches.replace(torch, "get_device_module", lambda device=None: torch.cuda if (found := ask(device)) is ours else found)
    patches.replace(torch, "Stream", streams.Stream)
    patches.replace(torch, "Event", streams.Event)
    patches.replace(torch.version, "cuda", f"{target.build[2:4]}.{target.build[4:]}")
    _install_libraries(patches, target)
    _install_accelerator(patches, module)


def _install_libraries(patches: Patches, target: Target) -> None:
    major, minor, patch = target.cudnn
    patches.replace(torch.backends.cudnn, "is_available", lambda: True)
    patches.replace(torch.backends.cudnn, "version", lambda: major * 10000 + minor * 100 + patch)
    patches.replace(torch.backends.cuda, "is_built", lambda: True)


def _install_accelerator(patches: Patches, module: CudaModule) -> None:
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
        "reset_accumulated_memory_stats": module.reset_accumulated_memory_stats,
        "get_memory_info": module.mem_get_info,
        "device_index": module.device,
    }
    patches.replace(TORCH_C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    for name, answer in answers.items():
        if hasattr(torch.accelerator, name):
            patches.replace(torch.accelerator, name, answer)


def _nested(statistics: dict[str, int]) -> dict[str, Any]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    nested: dict[str, Any] = {}
    for name, value in statistics.items():
        *outer, last = name.split(".")
        inner = nested
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def _enter_device_of(self: Any, tensor: torch.Tensor) -> None:
    DeviceContext.__init__(self, tensor.get_device() if tensor.is_cuda else None)
