"""Work that torch does once for every rank or for every pair of parameters, done once: with 512 ranks it is most of a prediction.

Results are the same; where the installed torch has no such function there is nothing to shorten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, overload

import torch
from torch.distributed.tensor import placement_types

from memfit.phantom.tensors.mode import PhantomMode
from memfit.torch_compat.distributed import forget_meshes, sharding_propagation
from memfit.torch_compat.fsdp import fsdp2_parameters
from memfit.torch_compat.patches import Patches


def install(patches: Patches, mode: PhantomMode) -> None:
    parameters, propagation = fsdp2_parameters(), sharding_propagation()
    patches.finally_call(forget_meshes)
    if hasattr(parameters, "_chunk_with_empty"):
        patches.replace(parameters, "_chunk_with_empty", Chunks)
    name = "_propagate_use_strided_shard_flag"
    if hasattr(propagation, name):
        patches.replace(propagation, name, _asked_once(getattr(propagation, name)))
    name, propagator = "_propagate_tensor_meta_non_cached", propagation.ShardingPropagator
    if hasattr(propagator, name):
        patches.replace(propagator, name, _by_shape(getattr(propagator, name), mode))


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


def _by_shape(propagate: Callable[..., Any], mode: PhantomMode) -> Callable[..., Any]:
    """Runs an operator on tensors of the host to learn a shape: they need no data, however small, and some would not do."""

    def propagate_without_data(*args: Any, **kwargs: Any) -> Any:
        before, mode.largest_real_bytes = mode.largest_real_bytes, -1
        try:
            return propagate(*args, **kwargs)
        finally:
            mode.largest_real_bytes = before

    return propagate_without_data


def _asked_once(propagate: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Looks for strided shards once an operator, not once for every tensor in its lists."""
    last: list[Any] = [None, None]

    def propagate_once(strategy: Any, schema: Any) -> None:
        if schema is not last[0]:
            last[:] = schema, _strided(schema.args_spec)
        if last[1].args_spec:
            propagate(strategy, last[1])

    return propagate_once


def _strided(specs: Sequence[Any]) -> SimpleNamespace:
    """One of each kind of strided shards: what is asked of them is whether they all say the same."""
    kind = placement_types._StridedShard
    found = [spec for spec in specs if any(isinstance(placement, kind) for placement in spec.placements)]
    return SimpleNamespace(args_spec=tuple({spec.use_strided_shard_as_shard_order: spec for spec in found}.values()))
