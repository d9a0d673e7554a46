"""Processes that a script starts: a rank is followed here, all others are started as ever."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess

import pytest
import torch.distributed as dist
from helpers.phantom_worlds import phantom
from helpers.prepared_process import run_prepared

from memfit.errors import ConfigError, NeedsGpuError
from memfit.phantom.distributed.environment import RankInfo, is_rank

calls: list[tuple[int, int]] = []


def train(rank: int, world_size: int) -> None:
    calls.append((rank, dist.get_world_size()))


def begin(rank: int, world_size: int, function) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    function(rank, world_size)


def begin_later(rank: int, world_size: int) -> None:
    begin(rank, world_size, train)


def preprocess(number: int, answers) -> None:
    answers.put((number, os.getpid()))


class RankProcess(multiprocessing.Process):
    def run(self) -> None:
        begin(0, 2, train)


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_the_first_of_the_ranks_is_this_process(context: str, world_size: int):
    calls.clear()
    with phantom(world_size=world_size):
        started = [multiprocessing.get_context(context).Process(target=begin, args=(rank, 4, train)) for rank in range(4)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        assert [process.exitcode for process in started] == [0] * 4
        assert not any(process.is_alive() for process in started)
    assert calls == [(0, 4)]


def test_ranks_are_told_from_other_processes():
    assert is_rank(multiprocessing.Process(target=begin_later, args=(0, 2)))
    assert is_rank(multiprocessing.Process(target=print, args=(begin,)))
    assert is_rank(RankProcess())
    assert not is_rank(multiprocessing.Process(target=preprocess, args=(0, None)))
    assert not is_rank(multiprocessing.Process())


def test_other_processes_are_started_as_ever():
    context = multiprocessing.get_context("fork")
    with phantom():
        answers = context.SimpleQueue()
        process = context.Process(target=preprocess, args=(3, answers))
        process.start()
        number, pid = answers.get()
        process.join()
        assert process.exitcode == 0
    assert (number, pid != os.getpid()) == (3, True)
    assert BaseProcess.start.__module__ == "multiprocessing.process"


def test_a_rank_in_a_process_that_was_not_followed_is_refused(monkeypatch: pytest.MonkeyPatch):
    with phantom():
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(NeedsGpuError, match="torchrun --nproc-per-node"):
            dist.init_process_group("nccl")


MESH = """
from helpers.phantom_worlds import phantom
from torch.distributed.device_mesh import init_device_mesh

with phantom(world_size=4):
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    assert mesh["tp"].size() == 2
    from torch.distributed.distributed_c10d import ProcessGroupNCCL
    import torch.distributed
    assert torch.distributed.ProcessGroupNCCL is ProcessGroupNCCL
"""


def test_a_mesh_without_a_group_waits_for_nobody():
    """In a process of its own: on its way there a real rendezvous would wait for three others."""
    done = run_prepared(MESH)
    assert done.returncode == 0, done.stderr


def test_a_function_that_was_imported_by_its_name_is_replaced_too(monkeypatch: pytest.MonkeyPatch):
    module = sys.modules[__name__]
    original = dist.init_process_group
    monkeypatch.setattr(module, "init_process_group", original, raising=False)
    with phantom(world_size=2):
        assert module.init_process_group is dist.init_process_group is not original
    assert module.init_process_group is dist.init_process_group is original


@pytest.mark.parametrize("mistake", [{"world_size": 0}, {"rank": 1}, {"processes_per_node": 0}])
def test_worlds_that_cannot_be_meant(mistake: dict[str, int]):
    with pytest.raises(ConfigError):
        RankInfo(**mistake)
