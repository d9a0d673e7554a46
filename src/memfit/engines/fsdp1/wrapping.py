"""FSDP1: one ``FullyShardedDataParallel`` around every unit and around the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import CustomPolicy

from memfit.engines.engine import WrapConfig
from memfit.errors import ConfigError


def wrap(config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
    if mesh.device_type == "cpu":
        raise ConfigError("FSDP1 needs an accelerator: on the CPU use engine='fsdp2'")
    prefetch = config.backward_prefetch
    options: dict[str, Any] = {
        "sharding_strategy": config.strategy.to_torch(),
        "auto_wrap_policy": CustomPolicy(set(units).__contains__),
        "mixed_precision": config.precision_words.to_torch(),
        "backward_prefetch": prefetch.to_torch() if prefetch is not None else None,
        "cpu_offload": config.cpu_offload.to_torch(),
        "device_id": torch.device(mesh.device_type, torch.accelerator.current_device_index()),
        "use_orig_params": True,
        "device_mesh": mesh,  # with one, sharded state dicts hold DTensors, as FSDP2's do
    }
    return FullyShardedDataParallel(model, **options | dict(config.engine_options))
