"""What NCCL takes is counted by process group and by collective, and said with its sources."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import memfit
from memfit.hardware import PEER_BYTES, find_gpu
from memfit.ledger import Ledger
from memfit.units import MIB


def predicted(mesh: tuple[int, ...], all_to_all: bool = False, splits: list[int] | None = None) -> memfit.Prediction:
    def build():
        dist.init_process_group("nccl")
        groups = dist.device_mesh.init_device_mesh("cuda", mesh, mesh_dim_names=("dp", "tp")[: len(mesh)])
        model = nn.Linear(8, 8).cuda()

        def step():
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            for name in groups.mesh_dim_names:
                dist.all_reduce(model.weight.grad, group=groups.get_group(name))
            if all_to_all:
                dist.all_to_all_single(torch.empty(8, device="cuda"), torch.empty(8, device="cuda"), splits, splits)

        return step

    return memfit.predict(build, gpu="H100-80GB", world_size=8, steps=1)


def words_of(prediction: memfit.Prediction) -> list[str]:
    return [sentence for sentence in prediction.assumptions if "NCCL" in sentence]


def test_one_group_needs_no_word():
    prediction = predicted((8,))
    assert words_of(prediction) == []
    assert prediction.verdict_alone.communicators == 688 * MIB


def test_a_second_group_takes_what_is_not_taken_once():
    prediction = predicted((4, 2))
    assert prediction.verdict_alone.communicators == (688 + 688 - 166) * MIB
    (sentence,) = words_of(prediction)
    assert "mesh_dp of 4 ranks, mesh_tp of 2 ranks: 688.00 MiB for the first" in sentence
    assert prediction.verdict_alone.capacity == find_gpu("H100-80GB").capacity(2)


def test_an_all_to_all_takes_more_for_each_rank():
    prediction = predicted((8,), all_to_all=True)
    assert prediction.verdict_alone.communicators == 688 * MIB + 7 * PEER_BYTES
    assert "8 ranks with all-to-all to 7 of them in the node" in words_of(prediction)[0]


def test_ranks_that_are_sent_nothing_are_not_counted():
    """As in a ring, in which each passes something on to the next."""
    prediction = predicted((8,), all_to_all=True, splits=[0, 8, 0, 0, 0, 0, 0, 0])
    assert prediction.verdict_alone.communicators == 688 * MIB + PEER_BYTES


def test_the_ledger_keeps_them(tmp_path):
    ledger = predicted((8,), all_to_all=True).ledger
    ledger.save(tmp_path / "run.memfit")
    assert Ledger.load(tmp_path / "run.memfit").info.communicators == ledger.info.communicators == (1, 7)
