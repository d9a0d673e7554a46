"""DDP: every rank holds the whole model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from memfit.errors import ConfigError
from memfit.fsdp.config import ShardConfig


def apply(config: ShardConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
    for name, parameter in model.named_parameters():
        if parameter.device.type != mesh.device_type:
            raise ConfigError(f"{name} is on {parameter.device.type}: move the model to {mesh.device_type} before DDP gets it")
    return DistributedDataParallel(model, process_group=mesh.get_group(), **config.engine_options)
