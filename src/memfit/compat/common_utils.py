"""``get_untyped_storages``, as PyTorch's tools have it."""

from __future__ import annotations

import warnings

import torch

from memfit.record.tensors import plain_tensors


def get_untyped_storages(t: torch.Tensor) -> set[torch.UntypedStorage]:
    """The storages that hold a tensor's bytes: its own, or those of the tensors inside a subclass or a sparse layout."""
    if not isinstance(t, torch.Tensor):
        warnings.warn(f"get_untyped_storages takes a tensor, not {type(t)}: it has no storages", UserWarning, stacklevel=2)
        return set()
    return {plain.untyped_storage() for plain in plain_tensors(t)}
