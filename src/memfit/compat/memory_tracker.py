"""``MemoryTracker``, PyTorch's older tracker: what the device says after each operator of a model's step.

On a GPU, real or phantom, the figures are its allocator's. Without one, where PyTorch's raises, they are the recorder's: what
tensors hold on the CPU, which is then allocated, active and reserved alike.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from memfit.errors import ConfigError
from memfit.record.tracker import Tracker
from memfit.torch_compat.dispatch import TorchDispatchMode
from memfit.units import MIB

Reading = tuple[str, float]
"""An operator, and MiB after it."""

_SAVED = ("memories_allocated", "memories_active", "memories_reserved", "markers", "num_alloc_retries")
_RULE = "-" * 48


class MemoryTracker:
    """Reads the memory in use after each operator between ``start_monitor`` and ``stop``.

    ::

        tracker = MemoryTracker()
        tracker.start_monitor(model)
        model(batch).sum().backward()
        tracker.stop()
        tracker.summary()
    """

    def __init__(self) -> None:
        self.memories_allocated: dict[int, Reading] = {}
        self.memories_active: dict[int, Reading] = {}
        self.memories_reserved: dict[int, Reading] = {}
        self._markers: dict[str, int] = {}
        self._operator_names: Counter[str] = Counter()
        self._hooks: list[RemovableHandle] = []
        self._cur_module_name = ""
        self._op_index = self._num_alloc_retries = 0
        self.profile_mode: MemoryProfileDispatchMode | None = None
        self._source: _DeviceAllocator | _Recorded = _Recorded()

    def start_monitor(self, root_module: nn.Module) -> None:
        """From now on, each operator is followed by a reading; those in a module's forward carry its name."""
        if self.profile_mode is not None:
            raise AssertionError("this tracker monitors a module already: call stop first")
        self._clear()
        for name, module in root_module.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._before_forward(name, module is root_module)))
        self._hooks.append(root_module.register_forward_hook(lambda *_: self._mark("fw_bw_boundary")))
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self._source = _Recorded() if accelerator is None else _DeviceAllocator(torch.get_device_module(accelerator))
        self._source.start(root_module)
        self.profile_mode = MemoryProfileDispatchMode(self)
        self.profile_mode.__enter__()

    def stop(self) -> None:
        if self.profile_mode is None:
            raise AssertionError("this tracker monitors nothing: call start_monitor first")
        self.profile_mode.__exit__(None, None, None)
        self.profile_mode = None
        self._num_alloc_retries = self._source.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def summary(self, top: int = 20) -> None:
        """Prints the operators after which most more was allocated than before them."""
        readings = [self.memories_allocated[index] for index in range(self._op_index)]
        grown = {name: size - before for (_, before), (name, size) in pairwise(readings)}
        print(_RULE)
        print(f"The number of alloc retries are: {self._num_alloc_retries}")
        print(f"Top {top} ops that generates memory are:")
        for name, size in sorted(grown.items(), key=lambda item: item[1], reverse=True)[:top]:
            print(f"{name}: {size}MB")
        print(_RULE)

    def show_traces(self, path: str = "") -> None:
        """Draws the readings with matplotlib: all together, then one by one. ``path``: of stats that were saved."""
        try:
            from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError("show_traces needs matplotlib: pip install matplotlib") from error
        if path:
            self.load(path)
        kinds = {"allocated": self.memories_allocated, "active": self.memories_active, "reserved": self.memories_reserved}
        for drawn in (tuple(kinds), *((kind,) for kind in kinds)):
            _, axes = pyplot.subplots()
            for kind in drawn:
                axes.plot([size for _, size in kinds[kind].values()], label=f"{kind}_memory")
            for name, at in self._markers.items():
                axes.axvline(at, color="r" if name == "fw_bw_boundary" else "k", label=name)
            axes.set(xlabel="# Operator Calls", ylabel="Memory (MB)")
            axes.legend()

    def save_stats(self, path: str) -> None:
        """Writes the readings, in the format of PyTorch's tracker."""
        stats = {name: getattr(self, name if name.startswith("memories") else f"_{name}") for name in _SAVED}
        Path(path).write_bytes(pickle.dumps(stats, pickle.HIGHEST_PROTOCOL))

    def load(self, path: str) -> None:
        """Reads what ``save_stats`` wrote, ours or PyTorch's. A file that asks for anything but numbers and words is refused."""
        with open(path, "rb") as file:
            stats = _Stats(file).load()
        missing = [name for name in _SAVED if not isinstance(stats, dict) or name not in stats]
        if missing:
            raise ConfigError(f"{path} has no {', '.join(missing)}: MemoryTracker.save_stats did not write it")
        for name in _SAVED:
            setattr(self, name if name.startswith("memories") else f"_{name}", stats[name])
        self._op_index = len(self.memories_allocated)

    # -- what happens --------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        for state in (self.memories_allocated, self.memories_active, self.memories_reserved, self._markers, self._operator_names):
            state.clear()
        self._cur_module_name = ""
        self._op_index = self._num_alloc_retries = 0

    def _before_forward(self, name: str, is_root: bool) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._cur_module_name = f"{name}.forward"
            if is_root:
                self._mark("fw_start")

        return hook

    def _mark(self, name: str) -> None:
        self._markers[name] = len(self.memories_allocated)

    def _record_memory_stats(self, operator: str) -> None:
        """Reads the memory after an operator, given by the name of its reading."""
        kinds = (self.memories_allocated, self.memories_active, self.memories_reserved)
        for readings, size in zip(kinds, self._source.read(), strict=True):
            readings[self._op_index] = (operator, size / MIB)
        self._op_index += 1


class MemoryProfileDispatchMode(TorchDispatchMode):
    """Has a tracker, ours or PyTorch's, read the memory after each operator that runs in it."""

    def __init__(self, memory_tracker: Any) -> None:
        super().__init__()
        self.memory_tracker = memory_tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.detach.default:  # it makes no memory, and is everywhere
            tracker, operator = self.memory_tracker, func.__name__
            tracker._record_memory_stats(f"{tracker._cur_module_name}.{operator}_{tracker._operator_names[operator]}")
            tracker._operator_names[operator] += 1
        return result


class _DeviceAllocator:
    """Asks a device's allocator."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def start(self, root: nn.Module) -> None:
        self._module.empty_cache()

    def stop(self) -> int:
        """How often the allocator had to empty its cache and try again."""
        return int(self._module.memory_stats().get("num_alloc_retries", 0))

    def read(self) -> tuple[int, int, int]:
        """Bytes allocated, active and reserved."""
        active = self._module.memory_stats().get("active_bytes.all.current", 0)
        return self._module.memory_allocated(), active, self._module.memory_reserved()


class _Recorded:
    """Asks the recorder what tensors hold on the CPU."""

    def __init__(self) -> None:
        self._tracker = Tracker(witness="operators")

    def start(self, root: nn.Module) -> None:
        self._tracker.adopt(root)
        self._tracker.__enter__()

    def stop(self) -> int:
        self._tracker.__exit__(None, None, None)
        return 0

    def read(self) -> tuple[int, int, int]:
        held = sum(self._tracker.running_totals().current().get("cpu", {}).values())
        return held, held, held


class _Stats(pickle.Unpickler):
    """Numbers, words and dictionaries, and nothing that could run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("collections", "defaultdict"), ("builtins", "int")):
            return super().find_class(module, name)
        raise ConfigError(f"the file asks for {module}.{name}: what MemoryTracker.save_stats writes holds only numbers and words")
