"""Turns a call of an operator on torch's tensors into a ``timing`` description."""

from __future__ import annotations

from typing import Any, Final

import torch

from memfit.timing.operators.calls import Argument, Call, Operand

_TYPES: Final = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8",
    torch.float8_e5m2: "f8",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
"""Other types count as one byte: none of them has a price of its own."""


def describe(func: Any, args: Any, result: Any) -> Call:
    """The call of ``func`` with these arguments and this result."""
    results = result if isinstance(result, (tuple, list)) else () if result is None else (result,)
    return Call(name_of(func), tuple(_describe_one(value) for value in args), tuple(_describe_one(value) for value in results))


def name_of(func: Any) -> str:
    """``mm``, ``sum.dim_IntList``; ``c10d::allreduce_`` of another namespace than aten's."""
    name: str = func.name() if hasattr(func, "name") else str(func)
    return name.removeprefix("aten::")


def type_name(dtype: torch.dtype) -> str:
    """``f32``, ``bf16``."""
    return _TYPES.get(dtype, "u8")


def _describe_one(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        return _operand(value)
    if isinstance(value, (list, tuple)):
        return tuple(_describe_one(item) for item in value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.dtype):
        return type_name(value)
    return type(value).__name__


def _operand(tensor: torch.Tensor) -> Operand:
    shape = tuple(int(size) for size in tensor.shape)
    stride = None
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        stride = tuple(int(step) for step in tensor.stride())
    kind = "" if tensor.device.type == "cuda" else "p" if tensor.is_pinned() else "h"
    return Operand(type_name(tensor.dtype), shape, stride, kind)
