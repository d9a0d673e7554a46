"""One rank of a world that is not there."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from worlds import phantom


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()


def train(net: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        net(torch.randn(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_environment_and_the_group():
    with phantom(world_size=16, rank=9):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"]) == (9, 16, "1")
        gathered = [None] * 16
        dist.all_gather_object(gathered, {"rank": 9})
        assert gathered == [{"rank": 9}] * 16
        dist.barrier()
    assert not dist.is_initialized()
    assert "LOCAL_RANK" not in os.environ


@pytest.mark.parametrize("world_size", [2, 16384])
def test_fsdp2(world_size: int):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with phantom(world_size=world_size):
        dist.init_process_group("nccl")
        net = model()
        for layer in (net[0], net[2], net):
            fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        train(net)
        assert net[0].weight.to_local().shape[0] == max(1, 16 // world_size)


@pytest.mark.parametrize("reshard", [False, 2])
def test_fsdp2_on_a_mesh(reshard: bool | int):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with phantom(world_size=8):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
        net = model()
        fully_shard(net, mesh=mesh, reshard_after_forward=reshard)
        train(net)


@pytest.mark.filterwarnings("ignore:The `NO_SHARD`")
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1(strategy: str):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    with phantom(world_size=4):
        dist.init_process_group("nccl")
        train(FullyShardedDataParallel(model(), sharding_strategy=ShardingStrategy[strategy], use_orig_params=True, device_id=0))


@pytest.mark.parametrize("views", [False, True])
def test_ddp(views: bool):
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(model(), device_ids=[0], gradient_as_bucket_view=views)
        train(net, steps=3)


def test_tensor_parallelism():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = parallelize_module(model(), init_device_mesh("cuda", (4,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        train(net)
        assert net[0].weight.to_local().shape == (4, 8)
