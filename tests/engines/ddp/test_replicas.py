"""``nn.DataParallel``: one process that drives several GPUs."""

from __future__ import annotations

from typing import ClassVar

import torch
from helpers.phantom_worlds import phantom
from torch import nn


def train(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out = model(batch)
    out.sum().backward()
    return out


class Noting(nn.Linear):
    """Notes where it ran, and on how much."""

    seen: ClassVar[set[tuple[torch.device, torch.device, int]]] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add((self.weight.device, x.device, len(x)))
        return super().forward(x)


def test_replicas_are_on_every_gpu_and_the_result_and_gradients_on_the_first():
    Noting.seen.clear()
    with phantom(world_size=4):
        model = nn.DataParallel(nn.Sequential(Noting(16, 16, bias=False), nn.BatchNorm1d(16))).cuda()
        out = train(model, torch.ones(8, 16, device="cuda"))
        assert (tuple(out.shape), out.device) == ((8, 16), torch.device("cuda:0"))
        assert model.module[0].weight.grad.device == torch.device("cuda:0")
        gpus = [torch.device("cuda", index) for index in range(4)]
        assert Noting.seen == {(gpu, gpu, 2) for gpu in gpus}


def test_copies_of_small_tensors_are_views_of_flat_buffers():
    with phantom(world_size=2):
        tensors = [torch.empty(256, device="cuda") for _ in range(3)]
        there = torch.nn.parallel.comm.broadcast_coalesced(tensors, [0, 1])[1]
        assert {copy.untyped_storage().nbytes() for copy in there} == {3 * 1024}
        assert {copy.device for copy in there} == {torch.device("cuda:1")}


def test_one_gpu_has_no_replicas():
    with phantom():
        assert train(nn.DataParallel(nn.Linear(2, 2)).cuda(), torch.ones(4, 2)).device == torch.device("cuda:0")
