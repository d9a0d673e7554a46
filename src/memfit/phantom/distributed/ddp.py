"""DistributedDataParallel without its C++: a reducer of ours, and the broadcasts with which it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as data_parallel

from memfit.phantom.distributed.ddp_reducer import Logger, Reducer, assign_buckets
from memfit.phantom.passthrough.refusals import refuse
from memfit.torch_compat.dispatch import tree_map_only
from memfit.torch_compat.patches import Patches

BROADCASTS_IN_FLIGHT = 2


def install(patches: Patches) -> None:
    patches.replace(dist, "Reducer", Reducer)
    patches.replace(dist, "Logger", Logger)
    patches.replace(dist, "_broadcast_coalesced", _broadcast_coalesced)
    patches.replace(dist, "_register_comm_hook", lambda reducer, state, hook: reducer.register_hook(state, hook))
    patches.replace(dist, "_register_builtin_comm_hook", lambda reducer, kind: reducer.register_builtin_hook(kind))
    patches.replace(data_parallel, "_verify_param_shape_across_processes", lambda *args, **kwargs: None)
    patches.replace(torch.nn.DataParallel, "forward", _one_gpu)


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


def _one_gpu(model: torch.nn.DataParallel[Any], *inputs: Any, **kwargs: Any) -> Any:
    """``DataParallel`` of one GPU, which only moves its inputs there."""
    if len(model.device_ids) > 1:
        refuse("one process that drives several GPUs (DataParallel)", "Use DistributedDataParallel, one process a GPU.")
    move = tree_map_only
    inputs, kwargs = move(torch.Tensor, lambda tensor: tensor.cuda(), (inputs, kwargs))
    return model.module(*inputs, **kwargs)
