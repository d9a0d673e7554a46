"""bitsandbytes: its own Python code for CUDA runs, above a native library that does nothing.

::

    Linear4bit, Adam8bit, ... ──> torch.ops.bitsandbytes.* ──> backends/cuda/ops.py of the installed package, operator by operator
                                                                    └──> lib.c...  ──> Library: nothing

So what is dequantised, padded and summed on the way is seen, and which kernel is chosen follows from the GPU's properties, as in a
real run. Paged optimizers keep their state in memory that the driver moves between host and GPU, which is none of the caching
allocator's (``functional.get_paged``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from memfit.phantom.current import current, find_world
from memfit.torch_compat.dispatch import DispatchKey, DispatchKeySet, all_operator_names, has_kernel
from memfit.torch_compat.patches import Patches

PACKAGE = "bitsandbytes"
PAGED = (
    "paged optimizer state of bitsandbytes is in managed memory: it is not counted on the GPU, where the driver keeps as much of "
    "it as there is room for"
)


def install(patches: Patches) -> None:
    patches.when_imported(f"{PACKAGE}.cuda_specs", lambda module: patches.replace(module, "get_cuda_specs", lambda: None))
    for name in ("cextension", "functional", "backends.cpu.ops", "backends.cuda.ops"):
        patches.when_imported(f"{PACKAGE}.{name}", lambda module: _replace_library(patches, module))
    patches.when_imported(f"{PACKAGE}.functional", lambda module: _replace_paging(patches, module))
    patches.when_imported(PACKAGE, lambda module: _open_operators(patches))


def _replace_library(patches: Patches, module: Any) -> None:
    if hasattr(module, "lib") and not isinstance(module.lib, Library):
        patches.replace(module, "lib", Library(module.lib))


def _replace_paging(patches: Patches, module: Any) -> None:
    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        current().say(PAGED)
        made = torch.empty(shape, dtype=dtype, device="cpu")
        made.is_paged, made.page_deviceid = True, 0  # type: ignore[attr-defined]
        return made

    patches.replace(module, "get_paged", get_paged)


def _open_operators(patches: Patches) -> None:
    """The package has these kernels where a GPU was found when it was imported."""
    kernels = importlib.import_module(f"{PACKAGE}.backends.cuda.ops")
    forget = [value.cache_clear for value in vars(kernels).values() if hasattr(value, "cache_clear")]
    for clear in forget:  # they remember the GPU
        clear()
        patches.finally_call(clear)
    for name in all_operator_names():
        if name.startswith(f"{PACKAGE}::") and any(has_kernel(name, key) for key in ("CUDA", "CompositeExplicitAutograd")):
            patches.implement("AutogradPrivateUse1", name, _running(name))


def _running(name: str) -> Callable[..., Any]:
    packet, _, overload = name.removeprefix(f"{PACKAGE}::").partition(".")
    operator = getattr(getattr(torch.ops.bitsandbytes, packet), overload or "default")
    keys = DispatchKeySet(DispatchKey.CUDA)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return operator.redispatch(keys, *args, **kwargs)

    return run


class Library:
    """The native library: while a prediction lasts, what it does on the GPU is nothing."""

    compiled_with_cuda = True

    def __init__(self, real: Any) -> None:
        self._real = real
        self._functions: dict[str, _Function] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._functions.setdefault(name, _Function(name, self._real))


class _Function:
    argtypes: Any = None
    restype: Any = None

    def __init__(self, name: str, library: Any) -> None:
        self._name, self._library = name, library

    def __call__(self, *args: Any) -> Any:
        if find_world() is not None and "cpu" not in self._name:
            return 0
        function = getattr(self._library, self._name)
        if self.argtypes is not None:
            function.argtypes, function.restype = self.argtypes, self.restype
        return function(*args)
