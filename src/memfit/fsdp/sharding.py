"""``shard``: a configuration applied to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed import fsdp as torch_fsdp

from memfit.engines import find_engine
from memfit.fsdp.checkpointing import Checkpointing, checkpoint_units
from memfit.fsdp.config import ShardConfig
from memfit.fsdp.meshes import Mesh, make_mesh
from memfit.fsdp.sharding_options import BackwardPrefetch, CPUOffload, Engine, MixedPrecision, ShardingStrategy
from memfit.fsdp.units import Units, find_units


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
