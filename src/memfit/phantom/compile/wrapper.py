"""What Inductor writes is a Python function that allocates, frees, calls libraries and launches kernels: here it runs.

::

    empty_strided_cuda(...)          a tensor of the phantom GPU, which the recorder sees
    del buf3, reuse of buf3          as they stand
    extern_kernels.mm(..., out=...)  the operator, with the workspaces that its rule names
    triton_poi_fused_add_0.run(...)  a kernel writes into what it is given; the first launch times it (tuning.py)
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from memfit.phantom.clock.launches import launched, read_source
from memfit.phantom.compile.allocation import Origin, allocating_for
from memfit.phantom.compile.origins import ALLOCATE, label
from memfit.phantom.compile.tuning import Tuner, storage_length
from memfit.phantom.device.streams import current_stream_number
from memfit.torch_compat.dispatch import below_views

ALIGNMENT_BYTES = 16
"""Where a kernel expects its inputs to begin."""


def run_wrapper(
    source: str, nodes: Sequence[tuple[int, Any]], is_backward: bool, constants: dict[str, Any], name: str, tuner: Tuner
) -> Any:
    """Makes a module of what Inductor has written; its ``call`` does what the compiled graph does to memory."""
    module = ModuleType(name)
    namespace = vars(module)
    namespace["__builtins__"] = {**vars(builtins), "__import__": _importing(tuner)}
    code, origins = label(source, nodes, is_backward, f"<{name}>")
    exec(code, namespace)
    namespace.update(_IN_THE_PLACE)
    namespace[ALLOCATE] = _allocating(origins)
    namespace.update(constants)
    call = namespace["call"]

    def call_without_garbage(args: Any) -> Any:
        _garbage.collect()
        return call(args)

    namespace["call"] = call_without_garbage
    return module


class _Garbage:
    """What compiling leaves behind in cycles holds on to tensors of the program, until Python looks for it.

    When that is depends on how much else is going on; on a GPU, where compiling takes much longer, it is soon.
    """

    def __init__(self) -> None:
        self._is_there = False

    def note(self) -> None:
        """Something was compiled."""
        self._is_there = True

    def collect(self) -> None:
        if self._is_there:
            self._is_there = False
            gc.collect()


_garbage = _Garbage()
note_garbage = _garbage.note


class Kernel:
    """A kernel that was never compiled."""

    def __init__(self, name: str, first_launch: Callable[[Sequence[Any]], None] | None = None, source: str = "") -> None:
        self.name = name
        self._first_launch = first_launch
        self._source = read_source(source)

    def run(self, *args: Any, **kwargs: Any) -> None:
        if self._first_launch is not None:
            tune, self._first_launch = self._first_launch, None
            tune(args)
        launched(self.name, args, self._source)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Kernels for the host are called."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Kernels of the user's own are launched on a grid."""
        return self.run


class AsyncCompile:
    """Inductor's own, which compiles: every kind of kernel is one that was never compiled."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner

    def triton(self, name: str, source: str, *args: Any, **kwargs: Any) -> Kernel:
        return Kernel(name, functools.partial(self._tuner.first_launch, name, source), source)

    def __getattr__(self, kind: str) -> Callable[..., Kernel]:
        return lambda name="", *args, **kwargs: Kernel(name if isinstance(name, str) else kind)

    def wait(self, namespace: dict[str, Any]) -> None: ...


class _Anything:
    """A part of Triton that a wrapper names, and never uses."""

    def __getattr__(self, name: str) -> Any:
        return _Anything()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator gives back what it decorates; the kernel itself is never run.
        return Kernel(getattr(args[0], "__name__", "")) if args and callable(args[0]) else _Anything()


def _importing(tuner: Tuner) -> Callable[..., Any]:
    """What a wrapper's ``import`` does."""

    def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.partition(".")[0] == "triton":
            return _Anything()
        if name.endswith(".async_compile") and fromlist:
            return SimpleNamespace(AsyncCompile=functools.partial(AsyncCompile, tuner))
        if name.endswith(".triton_heuristics") and fromlist:
            return _Anything()
        if fromlist:
            return importlib.import_module(name)
        importlib.import_module(name)
        return importlib.import_module(name.partition(".")[0])

    return import_


def _allocating(origins: Sequence[Origin]) -> Callable[..., torch.Tensor]:
    def empty_strided_cuda(size: Any, stride: Any, dtype: torch.dtype, origin: int = -1) -> torch.Tensor:
        with allocating_for(origins[origin] if origin >= 0 else None):
            return torch.empty_strided(size, stride, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device()))

    return empty_strided_cuda


def _empty_strided_cpu(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


def _reinterpret_tensor(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    """As Inductor's own gives it: no view, so that writing into it does not change the first tensor's version."""
    with below_views():
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _alloc_from_pool(pool: torch.Tensor, offset: int, dtype: torch.dtype, size: Any, stride: Any) -> torch.Tensor:
    return torch.as_strided(pool.view(dtype), size, stride, offset // dtype.itemsize)


def _copy_if_misaligned(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.data_ptr() % ALIGNMENT_BYTES == 0:
        return tensor
    copied = torch.as_strided(tensor, (storage_length(tensor),), (1,)).clone()
    return torch.as_strided(copied, tensor.shape, tensor.stride())


def _nothing(*args: Any, **kwargs: Any) -> None: ...


_IN_THE_PLACE: dict[str, Callable[..., Any]] = {
    "empty_strided_cpu": _empty_strided_cpu,
    "empty_strided_cpu_pinned": _empty_strided_cpu,
    "reinterpret_tensor": _reinterpret_tensor,
    "alloc_from_pool": _alloc_from_pool,
    "copy_if_misaligned": _copy_if_misaligned,
    "copy_misaligned": _copy_if_misaligned,  # of torch 2.12
    "assert_size_stride": _nothing,
    "assert_alignment": _nothing,
    "get_raw_stream": current_stream_number,
}
"""By the name under which a wrapper knows them: C++ functions that cannot work on tensors without data."""
