"""``DistributedDataParallel`` around a model; and on the phantom, without its C++: a reducer of ours, and the broadcasts with which
it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as data_parallel

from memfit.engines.ddp.reducer import Logger, Reducer, assign_buckets
from memfit.engines.engine import WrapConfig
from memfit.errors import ConfigError, NeedsGpuError
from memfit.torch_compat.dispatch import tree_map_only
from memfit.torch_compat.patches import Patches

BROADCASTS_IN_FLIGHT = 2


def wrap(config: WrapConfig, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for name, parameter in model.named_parameters():
        if parameter.device.type != mesh.device_type:
            raise ConfigError(f"{name} is on {parameter.device.type}: move the model to {mesh.device_type} before DDP gets it")
    return DistributedDataParallel(model, process_group=mesh.get_group(), **config.engine_options)


def install(patches: Patches) -> None:
    """Inside the phantom world."""
    patches.replace(dist, "Reducer", Reducer)
    patches.replace(dist, "Logger", Logger)
    patches.replace(dist, "_broadcast_coalesced", _broadcast_coalesced)
    patches.replace(dist, "_register_comm_hook", lambda reducer, state, hook: reducer.register_hook(state, hook))
    patches.replace(dist, "_register_builtin_comm_hook", lambda reducer, kind: reducer.register_builtin_hook(kind))
    patches.replace(data_parallel, "_verify_param_shape_across_processes", lambda *args, **kwargs: None)
    patches.replace(nn.DataParallel, "forward", _one_gpu)


def _broadcast_coalesced(process_group: Any, tensors: Sequence[torch.Tensor], buffer_size: int, src: int = 0) -> None:
    """Flat copies, broadcast two at a time: torch/csrc/distributed/c10d/comm.cpp."""
    if not tensors:
        return
    groups = assign_buckets(list(tensors), [buffer_size])
    in_flight: list[torch.Tensor] = []
    for group in groups:
        first = tensors[group[0]]
        in_flight.append(torch.empty(sum(tensors[i].numel() for i in group), dtype=first.dtype, device=first.device))
        if len(in_flight) >= BROADCASTS_IN_FLIGHT:
            in_flight.pop(0)


def _one_gpu(model: nn.DataParallel[Any], *inputs: Any, **kwargs: Any) -> Any:
    """``DataParallel`` of one GPU, which only moves its inputs there."""
    if len(model.device_ids) > 1:
        advice = "Use DistributedDataParallel, one process a GPU."
        raise NeedsGpuError("one process that drives several GPUs (DataParallel)", advice)
    move = tree_map_only
    inputs, kwargs = move(torch.Tensor, lambda tensor: tensor.cuda(), (inputs, kwargs))
    return model.module(*inputs, **kwargs)
