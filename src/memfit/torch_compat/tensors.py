"""Making tensors and exchanging their insides, past what has been put in the place of torch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memfit.torch_compat.versions import need

TensorBase: Any = need(torch._C, "TensorBase")
"""The C++ side of a tensor: its properties as torch made them, whatever Python is told."""

UninitializedTensor: type = need(torch.nn.parameter, "UninitializedTensorMixin")
"""A parameter or buffer of a lazy module, as long as it has no shape."""

GeneratorBase: Any = need(torch._C, "Generator")

empty_strided: Callable[..., torch.Tensor] = need(need(torch._C, "_VariableFunctions"), "empty_strided")
"""As torch made it, whatever has been put in its place since."""

make_tensor_subclass: Callable[..., torch.Tensor] = need(torch.Tensor, "_make_subclass")
make_wrapper_subclass: Callable[..., torch.Tensor] = need(torch.Tensor, "_make_wrapper_subclass")
"""The same."""

swap_insides: Callable[[torch.Tensor, torch.Tensor], None] = need(torch._C, "_swap_tensor_impl")
"""What ``torch.utils.swap_tensors`` does after its checks."""

forbid_writing_by_pointer: Callable[[torch.Tensor], None] = need(torch._C, "_set_throw_on_mutable_data_ptr")
"""A kernel that would write to a tensor without data raises instead."""


def mark_as_parameter(tensor: torch.Tensor) -> None:
    """From now on it is an ``nn.Parameter`` to those who ask, whatever its class."""
    tensor._is_param = True


_is_transformed: Callable[[torch.Tensor], bool] = need(torch._C._functorch, "is_functorch_wrapped_tensor")
_unwrap: Callable[[torch.Tensor], torch.Tensor] = need(torch._C._functorch, "get_unwrapped")


_innermost_transform: Callable[[], Any] = need(torch._C._functorch, "peek_interpreter_stack")


def is_transforming() -> bool:
    """Does this thread run inside of ``torch.func``'s ``vmap``, ``grad`` or another of its transforms?"""
    return _innermost_transform() is not None


def below_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the data of one that ``torch.func`` is at work on: inside ``vmap``, the whole batch."""
    while _is_transformed(tensor):
        tensor = _unwrap(tensor)
    return tensor


__all__ = [
    "GeneratorBase",
    "TensorBase",
    "UninitializedTensor",
    "below_transforms",
    "empty_strided",
    "forbid_writing_by_pointer",
    "is_traceable_wrapper_subclass",
    "make_tensor_subclass",
    "make_wrapper_subclass",
    "mark_as_parameter",
    "swap_insides",
]


def where_data_begin(tensors: Iterable[torch.Tensor | None]) -> list[int] | None:
    """Where the data of each tensor begin, 0 for none: cheap, to see whether anything has moved. ``None`` where one cannot tell."""
    try:
        return [
            0 if tensor is None else tensor.data_ptr() if type(tensor) in _PLAIN else _inner(tensor).data_ptr()
            for tensor in tensors
        ]
    except (RuntimeError, NotImplementedError):  # sparse ones, and other kinds without data of their own
        return None


def where_storages_begin(tensors: Iterable[torch.Tensor | None]) -> list[int] | None:
    """Where the memory behind each tensor begins, 0 for none. ``None`` where one cannot tell."""
    found = []
    try:
        for tensor in tensors:
            if tensor is None:
                found.append(0)
                continue
            plain = tensor if type(tensor) in _PLAIN else _inner(tensor)
            begins, offset = plain.data_ptr(), int(plain.storage_offset())
            found.append(begins - offset * plain.element_size() if begins and offset else begins)
    except (RuntimeError, NotImplementedError):  # the same
        return None
    return found


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
