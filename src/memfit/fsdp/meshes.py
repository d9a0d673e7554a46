"""Over which ranks: a mesh made from the world, or the one that was given."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from memfit.errors import ConfigError
from memfit.fsdp.sharding_options import ShardingStrategy
from memfit.hardware import GPUS_PER_NODE

Mesh = DeviceMesh | int | Sequence[int] | None
"""A mesh, its shape, or ``None`` for all ranks."""


def make_mesh(model: nn.Module, strategy: ShardingStrategy, given: Mesh) -> DeviceMesh:
    """The mesh of a strategy: ranks that shard, or (replicas, ranks that shard)."""
    if not dist.is_initialized():
        raise ConfigError(
            "there is no process group yet: call torch.distributed.init_process_group() before shard(), under torchrun or in "
            "memfit.predict"
        )
    if isinstance(given, DeviceMesh):
        _check_axes(strategy, tuple(given.shape))
        return given
    shape = _default_shape(strategy) if given is None else (given,) if isinstance(given, int) else tuple(given)
    _check_axes(strategy, shape)
    if (ranks := _product(shape)) != dist.get_world_size():
        raise ConfigError(f"mesh={shape} has {ranks} ranks, but the world has {dist.get_world_size()}")
    names = ("replicate", "shard")[-len(shape) :]
    return init_device_mesh(device_type(model), shape, mesh_dim_names=names)


def _default_shape(strategy: ShardingStrategy) -> tuple[int, ...]:
    world = dist.get_world_size()
    if not strategy.is_hybrid:
        return (world,)
    per_node = min(world, int(os.environ.get("LOCAL_WORLD_SIZE", GPUS_PER_NODE)))
    if world % per_node:
        raise ConfigError(
            f"{strategy.name} needs nodes of one size, but {world} ranks are no multiple of {per_node} per node: pass "
            "mesh=(replicas, ranks that shard)"
        )
    return (world // per_node, per_node)


def _check_axes(strategy: ShardingStrategy, shape: tuple[int, ...]) -> None:
    if strategy.is_hybrid and len(shape) != 2:
        raise ConfigError(f"{strategy.name} takes a mesh of two axes, (replicas, ranks that shard), not {shape}")
    if not strategy.is_hybrid and len(shape) != 1:
        hybrid = "_HYBRID_SHARD_ZERO2" if strategy is ShardingStrategy.SHARD_GRAD_OP else "HYBRID_SHARD"
        raise ConfigError(f"{strategy.name} takes a mesh of one axis, not {shape}; {hybrid} takes two")


def _product(shape: tuple[int, ...]) -> int:
    ranks = 1
    for axis in shape:
        ranks *= axis
    return ranks


def device_type(model: nn.Module) -> str:
    """Where the model will compute: where it is; for one on the CPU or nowhere yet, where the process group can communicate."""
    kinds = {parameter.device.type for parameter in model.parameters()} - {"cpu", "meta"}
    if kinds:
        return kinds.pop()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None or dist.get_backend() == "gloo" else accelerator.type
