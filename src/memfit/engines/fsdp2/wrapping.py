"""FSDP2: ``fully_shard`` on every unit, from the inside out, then on the model."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)

from memfit.engines.engine import WrapConfig
from memfit.errors import ConfigError
from memfit.torch_compat.fsdp import fsdp2_parameters, prefetch_after_backward
from memfit.torch_compat.patches import Patches


def wrap(config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
    precision = config.mixed_precision
    shard_one = functools.partial(fully_shard, **_options(config, mesh))
    for module in _in_full_precision(model, precision):
        shard_one(module, mp_policy=_full_precision(precision))
    for unit in reversed(units):
        if not isinstance(unit, FSDPModule):
            shard_one(unit, mp_policy=_policy(precision))
    shard_one(model, mp_policy=_policy(precision, is_root=True))
    _set_prefetch(model, config.backward_prefetch)
    return model


def _options(config: WrapConfig, mesh: DeviceMesh) -> dict[str, Any]:
    if config.strategy == ShardingStrategy.NO_SHARD:
        mesh = _all_replicas(mesh)
    # None reshards every unit but the model itself, whose parameters backward needs at once; as FSDP1 does.
    options = {"mesh": mesh, "reshard_after_forward": None if config.strategy.reshards_after_forward else False}
    offloads = config.cpu_offload.offload_params
    offload_policy = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if offloads else OffloadPolicy()
    return options | {"offload_policy": offload_policy} | dict(config.engine_options)


def _all_replicas(mesh: DeviceMesh) -> DeviceMesh:
    """One rank shards, the others are its replicas."""
    if mesh.size() != dist.get_world_size():
        raise ConfigError("NO_SHARD on FSDP2 takes the whole world: for a part of it use engine='ddp' or 'fsdp1'")
    return init_device_mesh(mesh.device_type, (mesh.size(), 1), mesh_dim_names=("replicate", "shard"))


def _policy(precision: Any, is_root: bool = False) -> MixedPrecisionPolicy:
    if isinstance(precision, MixedPrecisionPolicy):
        return precision
    cast_inputs = precision.cast_root_forward_inputs if is_root else precision.cast_forward_inputs
    return MixedPrecisionPolicy(
        param_dtype=precision.param_dtype, reduce_dtype=precision.reduce_dtype, cast_forward_inputs=cast_inputs
    )


def _full_precision(precision: Any) -> MixedPrecisionPolicy:
    """As FSDP1 does for classes that it is to ignore: inputs up to float32, outputs back down."""
    return MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=precision.param_dtype)


def _in_full_precision(model: nn.Module, precision: Any) -> list[nn.Module]:
    if isinstance(precision, MixedPrecisionPolicy) or precision.param_dtype is None:
        return []
    ignored = tuple(precision.module_classes_to_ignore)
    return [module for module in model.modules() if isinstance(module, ignored) and any(True for _ in module.parameters())]


def _set_prefetch(model: nn.Module, prefetch: Any) -> None:
    if prefetch == BackwardPrefetch.BACKWARD_PRE:
        return
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.set_modules_to_backward_prefetch([unit])  # in the next unit's place: itself, which is there already
            if prefetch == BackwardPrefetch.BACKWARD_POST:
                prefetch_after_backward(unit)


# -- on the phantom: parameters are cut for one rank -------------------------------------------------------------------------


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
