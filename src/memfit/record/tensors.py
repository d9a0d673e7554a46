"""The tensors in nested values, and the plain tensors that hold a tensor's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.tensors import below_transforms, is_traceable_wrapper_subclass

PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, FakeTensor))
"""Types whose own storage holds their bytes in a strided layout."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold a tensor's bytes: itself, or those inside a subclass or a sparse layout."""
    tensor = below_transforms(tensor)
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):
                yield from plain_tensors(inner)
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    # Opaque layouts (mkldnn) have no storage to look at.
