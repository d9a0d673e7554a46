"""Tensors without data: their mode, and how they answer operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._subclasses
from torch._library.fake_impl import FakeImplCtx
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from memfit.torch_compat.dispatch import without_modes
from memfit.torch_compat.versions import need

fake_implementations: dict[Any, Callable[..., Any]] = need(fake_impls, "op_implementations_dict")
"""By operator: how fake tensors answer it, where they do not ask its meta kernel."""

device_handlers: dict[Any, Callable[[Any], Any]] = need(fake_tensor, "_DISPATCH_META_HANDLERS")
"""How fake tensors answer questions from C++; one of them is the device."""

device_query: Any = torch.ops.prim.device.default
"""The question itself."""

need(fake_tensor, "init_gpu_context")
FAKE_TENSOR_MODULE = fake_tensor
need(torch._subclasses, "FakeTensor")
SUBCLASSES_MODULE = torch._subclasses
"""Where libraries look for ``FakeTensor`` to learn whether they are being traced."""

need(FakeTensorMode, "create_symbolic_nested_int")
make_nested_int: Callable[[int, int], Any] = need(torch._C, "_get_nested_int")
"""The length of the jagged dimension of a nested tensor, from a number that tells it from others, and a factor."""

LOGGER_NAME = fake_tensor.__name__

_UNKNOWN_SHAPE: tuple[type[Exception], ...] = (
    need(fake_tensor, "UnsupportedOperatorException"),
    need(fake_tensor, "DynamicOutputShapeException"),
    need(fake_tensor, "DataDependentOutputException"),
    NotImplementedError,
)


def is_unknown_shape(error: BaseException) -> bool:
    """Is this what a fake tensor raises of an operator whose results it cannot tell?"""
    said = str(error) if type(error) is RuntimeError else ""
    # With a torch that is built for CUDA, it would run the operator on a GPU to see.
    refusals = ("no fake impl registered", "No CUDA GPUs are available", "Found no NVIDIA driver")
    return isinstance(error, _UNKNOWN_SHAPE) or any(refusal in said for refusal in refusals)


need(FakeImplCtx, "new_dynamic_size")


@contextmanager
def dynamic_sizes(answer: Callable[[int, int | None], int]) -> Iterator[None]:
    """A ``register_fake`` that asks for a size which only data can tell gets a number, given the least and the most it can be."""
    context: Any = FakeImplCtx
    original = context.new_dynamic_size

    def new_dynamic_size(self: Any, *, min: int = 0, max: int | None = None) -> int:
        return answer(min, max)

    context.new_dynamic_size = new_dynamic_size
    try:
        yield
    finally:
        context.new_dynamic_size = original


@contextmanager
def outside_modes() -> Iterator[None]:
    """No mode sees what is made here."""
    with torch._C.DisableTorchFunction(), without_modes():
        yield


forget_fake_answers: Callable[[], None] = need(FakeTensorMode, "cache_clear")
"""Fake tensors of all modes share one memory of what operators returned."""


def num_recalled_by_torch() -> int:
    """How often fake tensors have answered from their own memory so far."""
    return int(need(FakeTensorMode, "cache_hits"))


__all__ = [
    "FAKE_TENSOR_MODULE",
    "LOGGER_NAME",
    "SUBCLASSES_MODULE",
    "DataDependentOutputException",
    "FakeTensor",
    "FakeTensorMode",
    "device_handlers",
    "device_query",
    "dynamic_sizes",
    "fake_implementations",
    "forget_fake_answers",
    "is_unknown_shape",
    "make_nested_int",
    "num_recalled_by_torch",
]
