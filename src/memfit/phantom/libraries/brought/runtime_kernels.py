"""``torch.cuda._compile_kernel`` and cupy's ``RawKernel``: CUDA C that a script compiles when it runs, with NVRTC.

A kernel returns nothing: what it works on the script has allocated, and that is all the memory there is to it. A launch is passed
over, and what was known of its arguments is known no longer. How long it takes cannot be told from outside.

Arrays of cupy lie in a pool of its own, beside torch's memory: making one is refused by name.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch

from memfit.errors import NeedsGpuError
from memfit.phantom.current import current
from memfit.phantom.libraries.stand_ins import Fill, filling, is_stand_in
from memfit.phantom.tensors.tensor_annotations import forget_data
from memfit.torch_compat.patches import Patches

COMPILE: Final = "_compile_kernel"


def install(patches: Patches) -> None:
    """The two of torch and, once it is imported, those of the cupy that is installed."""
    if hasattr(torch.cuda, COMPILE):
        patches.replace(torch.cuda, COMPILE, _compile_kernel)
    patches.when_imported("cupy", lambda module: None if is_stand_in(module) else _replace(patches, module))


def _replace(patches: Patches, module: Any) -> None:
    for name, kind in {"RawKernel": RawKernel, "RawModule": RawModule}.items():
        patches.replace(module, name, kind)


def _compile_kernel(kernel_source: str, kernel_name: str, *args: Any, **kwargs: Any) -> RuntimeKernel:
    return RuntimeKernel(kernel_name)


class RuntimeKernel:
    """Is launched, and does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, *more: Any, **kwargs: Any) -> None:
        current().say(f"the kernel {self.name}, which the script compiles itself, was not run, and takes no time here")
        forget_data(*(args or ()))

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None: ...


class RawKernel(RuntimeKernel):
    """``cupy.RawKernel``. Arguments are mostly pointers: which tensors it writes to is not seen, so what is known stays known."""

    max_dynamic_shared_size_bytes = 0

    def __init__(self, code: str, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(name)

    def compile(self, *args: Any, **kwargs: Any) -> None: ...


class RawModule:
    """``cupy.RawModule``: some kernels of one source."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def get_function(self, name: str) -> RawKernel:
        return RawKernel("", name)

    def compile(self, *args: Any, **kwargs: Any) -> None: ...


class _CupyStream:
    """``cupy.cuda.Stream`` and ``ExternalStream``: torch's current one in other words."""

    null: Any = None

    def __init__(self, ptr: int = 0, *args: Any, **kwargs: Any) -> None:
        self.ptr = ptr

    def __enter__(self) -> _CupyStream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def use(self) -> None: ...

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def _fill_cupy(module: ModuleType) -> None:
    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        if name == "cuda":
            return importlib.import_module("cupy.cuda")
        if isinstance(getattr(np, name, None), type):
            return getattr(np, name)  # cupy's numbers are numpy's
        raise NeedsGpuError(
            f"{module.__name__}.{name}", "cupy's arrays lie beside torch's memory: use tensors of torch for the prediction."
        )

    module.__dict__.update(RawKernel=RawKernel, RawModule=RawModule, __getattr__=get)


MODULES: dict[str, Fill] = {
    "cupy": _fill_cupy,
    "cupy.cuda": filling(Stream=_CupyStream, ExternalStream=_CupyStream, Device=lambda *args: _CupyStream()),
}
