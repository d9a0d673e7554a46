"""``torch.cuda.FloatTensor`` and its kin: old names for a type on a device, which scripts still use."""

from __future__ import annotations

import functools
from typing import Any

import torch

from memfit.torch_compat.patches import Patches

_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class _LegacyType(type):
    """Makes tensors, and knows its own."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def install(patches: Patches) -> None:
    kinds = {f"{name}Tensor": _LegacyType(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in _DTYPES.items()}
    for name, kind in kinds.items():
        patches.replace(torch.cuda, name, kind)
    ask, set_default = torch.Tensor.type, torch.set_default_tensor_type

    @functools.wraps(ask)
    def type_(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None and tensor.is_cuda:
            return next((f"torch.cuda.{name}" for name, kind in kinds.items() if isinstance(tensor, kind)), ask(tensor))
        wanted = _find(kinds, dtype)
        return ask(tensor, dtype, *args, **kwargs) if wanted is None else tensor.to("cuda", wanted.dtype)

    @functools.wraps(set_default)
    def set_default_tensor_type(kind: Any) -> None:
        wanted = _find(kinds, kind)
        if wanted is None:
            set_default(kind)
        else:
            torch.set_default_dtype(wanted.dtype)
            torch.set_default_device("cuda")

    patches.replace(torch.Tensor, "type", type_)
    patches.replace(torch, "set_default_tensor_type", set_default_tensor_type)


def _find(kinds: dict[str, _LegacyType], named: Any) -> _LegacyType | None:
    if isinstance(named, str):
        return kinds.get(named.removeprefix("torch.cuda.")) if named.startswith("torch.cuda.") else None
    return named if isinstance(named, _LegacyType) else None
