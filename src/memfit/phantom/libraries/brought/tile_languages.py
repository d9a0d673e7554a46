"""tilelang and CuTe DSL: Python that describes kernels, which their compilers read. Nothing of it is run.

::

    @tilelang.jit(out_idx=[-1])               the function makes a description: its parameters say the shapes and types
    def matmul(M, N, K): ...                  of tensors, and those of out_idx are allocated by a call of the kernel
    @cute.jit, @cute.kernel                   a call is a launch: it works on tensors that the script has allocated

Facts, from tilelang/jit/__init__.py and tilelang/jit/adapter of 0.1.6: results are made with ``torch.empty`` on the current device.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from memfit.phantom.current import current
from memfit.phantom.libraries.stand_ins import Fill, filling
from memfit.phantom.libraries.triton import Anything
from memfit.phantom.tensors.tensor_annotations import forget_data


def _launch(name: str, args: Sequence[Any]) -> None:
    current().say(f"the kernel {name}, which the script describes, was not run, and takes no time here")
    forget_data(*args)


# -- tilelang ------------------------------------------------------------------------------------------------------------------


class TileTensor:
    """``T.Tensor((M, N), "float16")``, as the type of a parameter."""

    def __init__(self, shape: Any, dtype: Any = "float32", *args: Any, **kwargs: Any) -> None:
        self.shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        self.dtype: torch.dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, str(dtype))

    def empty(self) -> torch.Tensor:
        return torch.empty([int(size) for size in self.shape], dtype=self.dtype, device="cuda")


class TileFunction:
    """``T.prim_func``: the description of a kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.parameters = [each.annotation for each in inspect.signature(function).parameters.values()]


class TileKernel:
    """A kernel that was compiled from a description."""

    def __init__(self, described: TileFunction, out_idx: Any = None) -> None:
        self._described = described
        places = [out_idx] if isinstance(out_idx, int) else list(out_idx or ())
        self._made = [place % len(described.parameters) for place in places]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _launch(self._described.name, args)
        made = [self._described.parameters[place].empty() for place in self._made]
        return made[0] if len(made) == 1 else made or None

    def get_kernel_source(self) -> str:
        return ""


def tile_jit(function: Any = None, *, out_idx: Any = None, **options: Any) -> Any:
    """``tilelang.jit``: calling the function with numbers gives a kernel."""
    if function is None:
        return functools.partial(tile_jit, out_idx=out_idx)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> TileKernel:
        return TileKernel(function(*args, **kwargs), out_idx)

    return make


def tile_compile(described: TileFunction, out_idx: Any = None, *args: Any, **kwargs: Any) -> TileKernel:
    """``tilelang.compile``."""
    return TileKernel(described, out_idx)


# -- CuTe DSL ------------------------------------------------------------------------------------------------------------------


class CuteFunction:
    """``cute.jit`` and ``cute.kernel``: a call is a launch."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = function.__name__
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _launch(self._name, [getattr(arg, "tensor", arg) for arg in args])


class CuteTensor:
    """``from_dlpack(tensor)``: the same memory."""

    def __init__(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        """``mark_layout_dynamic`` and others say more about the same tensor."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self


def _decorated(function: Any = None, **options: Any) -> Any:
    return CuteFunction(function) if callable(function) else CuteFunction


def _fill_language(**contents: Any) -> Fill:
    fill = filling(**contents)

    def fill_all(module: ModuleType) -> None:
        fill(module)

        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            full = f"{module.__name__}.{name}"
            return importlib.import_module(full) if full in MODULES else Anything(full)

        module.__dict__["__getattr__"] = get

    return fill_all


MODULES: dict[str, Fill] = {
    "tilelang": _fill_language(jit=tile_jit, compile=tile_compile),
    "tilelang.language": _fill_language(prim_func=TileFunction, Tensor=TileTensor, Buffer=TileTensor),
    "cutlass": _fill_language(),
    "cutlass.cute": _fill_language(jit=_decorated, kernel=_decorated, compile=lambda function, *args, **kwargs: function),
    "cutlass.cute.runtime": _fill_language(from_dlpack=CuteTensor),
}
ANY_MODULE: Fill = _fill_language()
