"""``shard``: applies a ``ShardConfig`` to a model. A config that its engine cannot serve is refused when it is built."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from memfit.engines import find_engine
from memfit.errors import ConfigError
from memfit.fsdp.units import Checkpointing, Units, check_checkpointing, checkpoint_units, find_units
from memfit.fsdp.words import (
    BackwardPrefetch,
    CPUOffload,
    Engine,
    MixedPrecision,
    ShardingStrategy,
    as_mixed_precision,
    read_offload,
    read_precision,
)
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


Word = TypeVar("Word", bound=Enum)


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """How a model is to be sharded. Words are also taken as text, ``strategy="full_shard"``, and as torch's own."""

    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
    engine: Engine = None  # type: ignore[assignment]
    """Left out: FSDP2, or DDP for NO_SHARD."""
    units: Units = None
    """What is gathered together: module classes or their names, the fewest parameters of a unit, a policy, or ``None`` for the
    repeated blocks of the model's largest list. The model itself is always one more, for what is left."""
    mesh: Mesh = None
    """The ranks: a mesh, its shape, or ``None`` for the whole world; two axes, (replicas, ranks that shard), for hybrids."""
    mixed_precision: MixedPrecision | MixedPrecisionPolicy = MixedPrecision()
    """Torch's ``MixedPrecisionPolicy`` is handed to FSDP2 as it is, for every unit and the model."""
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE
    cpu_offload: CPUOffload = CPUOffload()
    checkpointing: Checkpointing = None
    """``"full"``: a unit's activations are computed again in backward. ``"selective"``: all but the outputs of matrix products,
    convolutions and attention. A policy: as torch's ``create_selective_checkpoint_contexts`` takes it. A ``memfit.Plan``: what it
    says for each of its own units."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to ``fully_shard``, ``FullyShardedDataParallel`` or ``DistributedDataParallel`` as they are."""

    def __post_init__(self) -> None:
        self._set("strategy", _word(ShardingStrategy, self.strategy))
        self._set("engine", _word(Engine, self.engine or self.strategy.row.engine))
        self._set("backward_prefetch", _word(BackwardPrefetch, self.backward_prefetch) if self.backward_prefetch else None)
        self._set("mixed_precision", read_precision(self.mixed_precision))
        self._set("cpu_offload", read_offload(self.cpu_offload))
        self._set("engine_options", dict(self.engine_options or {}))
        check_checkpointing(self.checkpointing)
        for problem in find_engine(self.engine).refused(self):
            raise ConfigError(problem)

    @property
    def precision_words(self) -> MixedPrecision:
        """``mixed_precision``, also where it is torch's ``MixedPrecisionPolicy``."""
        return as_mixed_precision(self.mixed_precision)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _word(kind: type[Word], given: Word | str) -> Word:
    """The member of an enumeration, also by its value: ``"full_shard"``."""
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(repr(getattr(each, "text", each.value)) for each in kind)
        raise ConfigError(f"{given!r} is not a {kind.__name__}: use one of {known}") from None


def shard(
    model: nn.Module,
    strategy: ShardingStrategy | torch_fsdp.ShardingStrategy | str = ShardingStrategy.FULL_SHARD,
    *,
    engine: Engine | str | None = None,
    units: Units = None,
    mesh: Mesh = None,
    mixed_precision: MixedPrecision | torch_fsdp.MixedPrecision | torch_fsdp.MixedPrecisionPolicy | None = None,
    backward_prefetch: BackwardPrefetch | torch_fsdp.BackwardPrefetch | str | None = BackwardPrefetch.BACKWARD_PRE,
    cpu_offload: CPUOffload | torch_fsdp.CPUOffload | None = None,
    checkpointing: Checkpointing = None,
    engine_options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The model, sharded on one of torch's engines: a plain torch module, to be trained as any other.

    Arguments are described in ``ShardConfig``; words may be text, ``"full_shard"``, or torch's own. FSDP2 changes a model in place
    and returns it, FSDP1 and DDP return a module around it: make the optimizer from what is returned. A model on the meta device
    stays there until ``model.to_empty(device=...)``.
    """
    words: dict[str, Any] = {
        "strategy": strategy,
        "engine": engine,
        "units": units,
        "mesh": mesh,
        "mixed_precision": mixed_precision,
        "backward_prefetch": backward_prefetch,
        "cpu_offload": cpu_offload,
        "checkpointing": checkpointing,
        "engine_options": engine_options,
    }
    return apply(ShardConfig(**words), model)


def apply(config: ShardConfig, model: nn.Module) -> nn.Module:
    ranks = make_mesh(model, config.strategy, config.mesh)
    found = find_units(model, config.units)
    # Checkpointing inside, sharding around it: what recomputation needs is gathered once for both.
    found = checkpoint_units(model, found, config.checkpointing)
    return find_engine(config.engine).wrap(config, model, found, ranks)
