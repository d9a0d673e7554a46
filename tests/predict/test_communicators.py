"""What NCCL takes is counted once; where a run has more of it, that is said."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import memfit


def predicted(mesh: tuple[int, ...], all_to_all: bool = False) -> tuple[str, ...]:
    def build():
        dist.init_process_group("nccl")
        groups = dist.device_mesh.init_device_mesh("cuda", mesh, mesh_dim_names=("dp", "tp")[: len(mesh)])
        model = nn.Linear(8, 8).cuda()

        def step():
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            for name in groups.mesh_dim_names:
                dist.all_reduce(model.weight.grad, group=groups.get_group(name))
            if all_to_all:
                dist.all_to_all_single(torch.empty(8, device="cuda"), torch.empty(8, device="cuda"))

        return step

    found = memfit.predict(build, gpu="H100-80GB", world_size=8, steps=1).assumptions
    return tuple(sentence for sentence in found if "NCCL" in sentence)


def test_one_group_needs_no_word():
    assert predicted((8,)) == ()


@pytest.mark.parametrize(
    ("mesh", "all_to_all", "words"),
    [((4, 2), False, "mesh_dp of 4 ranks, mesh_tp of 2 ranks"), ((8,), True, "8 ranks with all-to-all")],
)
def test_several_groups_and_an_all_to_all_are_said(mesh: tuple[int, ...], all_to_all: bool, words: str):
    (sentence,) = predicted(mesh, all_to_all)
    assert words in sentence
    assert "688.00 MiB" in sentence
