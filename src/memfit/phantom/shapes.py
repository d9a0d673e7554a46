"""Shapes that torch does not tell of operators that CUDA can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def answers() -> dict[Any, Callable[..., Any]]:
    """Stand-ins by operator; ``NotImplemented`` leaves it to torch."""
    return {aten._grouped_mm.default: _grouped_mm}


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """ATen/native/cuda/GroupedBlas.cpp has a slow way for other types than bfloat16; torch's shape function refuses them."""
    if left.dtype == torch.bfloat16:
        return NotImplemented
    shaped = aten._grouped_mm(left.bfloat16(), right.bfloat16(), *args, **kwargs)
    return shaped.new_empty(shaped.shape, dtype=left.dtype)
