"""Parameters that FSDP2 cuts into the shards of all ranks, cut for one: with 512 ranks it would be most of a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch

from memfit.torch_compat.fsdp import fsdp2_parameters
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    """Inside the phantom world; where the installed torch has no such function there is nothing to shorten."""
    parameters = fsdp2_parameters()
    if hasattr(parameters, "_chunk_with_empty"):
        patches.replace(parameters, "_chunk_with_empty", Chunks)


class Chunks(Sequence[torch.Tensor]):
    """A tensor in as many parts as there are ranks, of which FSDP only ever looks at its own."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._num_chunks, self._dim = tensor, num_chunks, dim
        self._size = -(-tensor.shape[dim] // num_chunks)

    def __len__(self) -> int:
        return self._num_chunks

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._num_chunks))]
        if not 0 <= index < self._num_chunks:
            raise IndexError(index)
        start = index * self._size
        length = min(self._size, self._tensor.shape[self._dim] - start)
        return self._tensor.narrow(self._dim, start, length) if length > 0 else self._tensor.new_empty(0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[i] for i in range(self._num_chunks))
