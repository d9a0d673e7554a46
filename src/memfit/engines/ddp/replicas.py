"""``nn.DataParallel`` on the phantom: one process that drives several GPUs. Its own Python runs; what it does in C++ is here.

Facts: torch/csrc/cuda/comm.cpp: parameters are copied in flat buffers of up to 10 MiB, of which every other GPU's copies are views;
batches are scattered in parts and results gathered into one tensor. Gradients come back in flat buffers too, and NCCL sums them
into a new one on the first GPU (torch/nn/parallel/comm.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import comm

from memfit.torch_compat.devices import TORCH_C
from memfit.torch_compat.distributed import flatten_dense_tensors, take_tensors, unflatten_dense_tensors
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.because("what DataParallel does in C++, between GPUs")
    for name, function in (("_broadcast_coalesced", _broadcast_coalesced), ("_scatter", _scatter), ("_gather", _gather)):
        patches.replace(TORCH_C, name, function)
    patches.replace(comm, "reduce_add", _reduce_add)


def _on(index: int) -> torch.device:
    return torch.device("cpu") if index == -1 else torch.device("cuda", index)


def _broadcast_coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int) -> list[list[torch.Tensor]]:
    made: dict[int, list[torch.Tensor]] = {device: [] for device in devices[1:]}
    order: list[torch.Tensor] = []
    for chunk in take_tensors(tensors, buffer_size):
        flat = flatten_dense_tensors(chunk)
        order += chunk
        for device, copies in made.items():
            copies += unflatten_dense_tensors(flat.to(_on(device)), chunk)
    places = {id(tensor): place for place, tensor in enumerate(order)}
    return [list(tensors), *([copies[places[id(tensor)]] for tensor in tensors] for copies in made.values())]


def _scatter(tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any = None) -> list[torch.Tensor]:
    parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
    return [part.to(_on(device), non_blocking=True) for part, device in zip(parts, devices, strict=False)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(int(tensor.shape[dim]) for tensor in tensors)
    out = torch.empty(shape, dtype=first.dtype, device=_on(0 if destination is None else destination))
    for tensor, part in zip(tensors, out.split([int(tensor.shape[dim]) for tensor in tensors], dim), strict=True):
        part.copy_(tensor)
    return out


def _reduce_add(inputs: Sequence[torch.Tensor], destination: Any = None) -> torch.Tensor:
    root = next(tensor for tensor in inputs if tensor.device == _on(destination or 0))
    return root if len(inputs) == 1 else torch.empty_like(root)
