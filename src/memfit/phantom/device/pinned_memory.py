"""Pinned memory: host memory that says it is, which is all that anybody asks of it."""

from __future__ import annotations

from typing import Any

import torch

from memfit.phantom.tensors.tensor_annotations import IS_PINNED
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.replace(torch.Tensor, "pin_memory", _pin_memory)
    patches.replace(torch.Tensor, "is_pinned", is_pinned)
    patches.replace(torch.UntypedStorage, "is_pinned", lambda storage, device="cuda": hasattr(storage, IS_PINNED))


def mark_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """The storage keeps the mark, so that views of it are pinned too."""
    setattr(tensor.untyped_storage(), IS_PINNED, True)
    return tensor


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    try:
        return hasattr(tensor.untyped_storage(), IS_PINNED)
    except NotImplementedError:  # a tensor made of others has none
        return False


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    return tensor if is_pinned(tensor) else torch.empty_like(tensor, pin_memory=True).copy_(tensor)
