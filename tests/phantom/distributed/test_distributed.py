"""One rank of a world that is not there."""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.distributed as dist
from helpers.phantom_worlds import phantom
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import memfit
from memfit.engines.ddp.wrapping import Bucket, Logger, Reducer
from memfit.ledger import Category
from memfit.units import MIB


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
    with phantom(world_size=world_size):
        dist.init_process_group("nccl")
        net = model()
        for layer in (net[0], net[2], net):
            fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        train(net)
        assert net[0].weight.to_local().shape[0] == max(1, 16 // world_size)


def test_collectives_leave_random_numbers_to_the_script():
    with phantom(world_size=2):
        dist.init_process_group("nccl")
        before = random.getstate()
        gathered = torch.ones(4, device="cuda")
        dist.all_reduce(gathered)
        assert random.getstate() == before


@pytest.mark.parametrize("reshard", [False, 2])
def test_fsdp2_on_a_mesh(reshard: bool | int):
    with phantom(world_size=8):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
        net = model()
        fully_shard(net, mesh=mesh, reshard_after_forward=reshard)
        train(net)
        assert net[0].weight.placements == (Replicate(), Shard(0))
        assert net[0].weight.to_local().shape == (16 // 4, 8)


@pytest.mark.filterwarnings("ignore:The `NO_SHARD`")
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1(strategy: str):
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = FullyShardedDataParallel(model(), sharding_strategy=ShardingStrategy[strategy], use_orig_params=True, device_id=0)
        train(net)
        whole = 8 * 16 + 16 + 16 * 8 + 8
        assert sum(parameter.numel() for parameter in net.parameters()) == (whole if strategy == "NO_SHARD" else whole // 4)


@pytest.mark.filterwarnings("ignore:The `NO_SHARD`")
def test_state_of_a_part_of_a_flat_parameter_is_of_the_part():
    def build():
        dist.init_process_group("nccl")
        net = FullyShardedDataParallel(model(), sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True, device_id=0)
        return lambda: train(net, steps=1)

    ledger = memfit.predict(build, world_size=2, steps=1).ledger
    state = ledger.roles.role == Category.OPTIMIZER_STATE
    owners = {ledger.module_path(module) for module in ledger.roles.module[state].tolist()}
    assert owners == {"0", "2"}
    assert all(not ledger.strings[name].endswith("flat_param") for name in ledger.roles.name[state].tolist())


@pytest.mark.parametrize("views", [False, True])
def test_ddp(views: bool):
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(model(), device_ids=[0], gradient_as_bucket_view=views)
        train(net, steps=3)
        net(torch.randn(2, 8, device="cuda")).sum().backward()
        storages = {parameter.grad.untyped_storage()._cdata for parameter in net.parameters()}
        assert len(storages) == (1 if views else 4)


def test_tensor_parallelism():
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = parallelize_module(model(), init_device_mesh("cuda", (4,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        train(net)
        assert net[0].weight.to_local().shape == (4, 8)


@pytest.mark.parametrize(
    "hook",
    ["allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "power_sgd", "builtin", "own"],
)
def test_ddp_communication_hooks(hook: str):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    reduced = []

    def own(state, bucket):
        assert bucket.buffer().numel() == sum(param.numel() for param in bucket.parameters())
        reduced.append(bucket.index())
        future = dist.all_reduce(bucket.buffer() / 4, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.0005)
        if hook == "builtin":
            net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        elif hook == "power_sgd":
            state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2)
            net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            net.register_comm_hook(None, own if hook == "own" else getattr(default_hooks, hook))
        train(net, steps=4)
    assert hook != "own" or len(reduced) > 4


def test_what_a_communication_hook_returns_lives_until_the_next():
    def peak(keep: bool) -> int:
        def build():
            dist.init_process_group("nccl")
            net = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024, bias=False).cuda())

            def hook(state, bucket):
                future = torch.futures.Future()
                future.set_result(bucket.buffer().clone() if keep else bucket.buffer())
                return future

            net.register_comm_hook(None, hook)

            def step():
                net(torch.randn(1, 1024, device="cuda")).sum().backward()
                net.zero_grad()

            return step

        return memfit.predict(build, world_size=2, steps=2).steps[1].end_allocated

    assert peak(keep=True) - peak(keep=False) == 4 * MIB


@pytest.mark.parametrize("waits", [False, True])
def test_nccl_holds_what_only_a_future_is_waited_for_of(waits: bool):
    """4 MiB a step: those of the first are let go by the next collective, later ones 0.1 s after they are over."""

    def build():
        dist.init_process_group("nccl")
        large = torch.empty(32768, 32768, device="cuda")
        start = torch.cuda.memory_allocated()

        def step():
            work = dist.all_reduce(torch.empty(2**20, device="cuda"), async_op=True)
            work.wait() if waits else work.get_future().wait()
            del work
            if len(ends) == 3:
                [large.mul_(2) for _ in range(200)]
                torch.cuda.synchronize()
            ends.append((torch.cuda.memory_allocated() - start) // MIB)

        return step

    ends: list[int] = []
    found = memfit.predict(build, gpu="H200", world_size=2, steps=6)
    assert ends == ([0] * 6 if waits else [4, 4, 8, 12, 4, 8])
    assert waits != any("watchdog" in assumption for assumption in found.assumptions)


def test_what_was_waited_for_is_let_go_although_others_were_issued_since():
    def build():
        dist.init_process_group("nccl")

        def step() -> None:
            works = [dist.all_reduce(torch.empty(2**20, device="cuda"), async_op=True) for _ in range(3)]
            for work in works:
                work.wait()

        return step

    prediction = memfit.predict(build, gpu="H200", world_size=2, steps=4)
    assert [step.end_allocated for step in prediction.steps] == [prediction.init.end_allocated] * 4


@pytest.mark.filterwarnings("ignore:`torch.distributed")
def test_a_collective_that_has_two_names_is_held_once():
    def build():
        dist.init_process_group("nccl")

        def step() -> None:
            part, whole = torch.empty(2**18, device="cuda"), torch.empty(2**19, device="cuda")
            dist.reduce_scatter_tensor(part, whole, async_op=True).wait()
            dist.all_gather_into_tensor(whole, part, async_op=True).wait()

        return step

    prediction = memfit.predict(build, gpu="H200", world_size=2, steps=3)
    assert [step.end_allocated for step in prediction.steps] == [prediction.init.end_allocated] * 3


@pytest.mark.filterwarnings("ignore:`torch.distributed")
def test_collectives_that_are_issued_together():
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        parts = [torch.empty(2, device="cuda") for _ in range(2)]
        wholes = [torch.empty(8, device="cuda") for _ in range(2)]
        for is_async in (False, True):
            for collective, arguments in (
                (dist.all_reduce, [(part,) for part in parts]),
                (dist.all_gather_into_tensor, list(zip(wholes, parts, strict=True))),
                (dist.reduce_scatter_tensor, list(zip(parts, wholes, strict=True))),
            ):
                with dist._coalescing_manager(async_ops=is_async) as manager:
                    for each in arguments:
                        collective(*each)
                assert len(manager.works) == is_async
                manager.wait()


def test_a_static_graph_has_its_last_buckets_from_the_third_step_on():
    def build():
        dist.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024, bias=False).cuda(), static_graph=True)

        def step():
            net(torch.randn(1, 1024, device="cuda")).sum().backward()
            net.zero_grad()

        return step

    steps = memfit.predict(build, gpu="H200", world_size=2, steps=4).steps
    assert steps[2].end_allocated - steps[1].end_allocated == 4 * MIB, "the buckets before them, which NCCL still holds"


def test_an_error_in_a_communication_hook_is_raised():
    def hook(state, bucket):
        raise ValueError("mine")

    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(model())
        net.register_comm_hook(None, hook)
        with pytest.raises(ValueError, match="mine"):
            train(net)


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_ddp_with_unused_parameters(options: dict):
    reduced = []

    def hook(state, bucket):
        reduced.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(HalfUsed().cuda(), **options)
        net.register_comm_hook(None, hook)
        train(net, steps=3)
        assert net.module.unused.weight.grad is None
    assert len(reduced) == (3 if "find_unused_parameters" in options else 0)


def test_ddp_accumulates_joins_and_syncs_batch_norms():
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).cuda())
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        with net.no_sync():
            net(torch.randn(2, 8, device="cuda")).sum().backward()
        train(net)
        with net.join():
            train(net)
        assert net._get_ddp_logging_data() == {}


@pytest.mark.parametrize(("ours", "theirs"), [(Reducer, "Reducer"), (Logger, "Logger"), (Bucket, "GradBucket")])
def test_the_reducer_has_every_method_of_torchs(ours: type, theirs: str):
    names = {name for name in dir(getattr(torch._C._distributed_c10d, theirs)) if not name.startswith(("__", "_pybind"))}
    assert names
    assert names - set(dir(ours)) == set()


@pytest.mark.parametrize(
    "options",
    [
        {"reshard_after_forward": True},
        {"reshard_after_forward": 2},
        {"offload_policy": CPUOffloadPolicy()},
        {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)},
        {"mesh": (2, 4)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_fsdp2_options(options: dict):
    with phantom(world_size=8):
        dist.init_process_group("nccl")
        if "mesh" in options:
            options = {"mesh": init_device_mesh("cuda", options["mesh"], mesh_dim_names=("replicate", "shard"))}
        net = model()
        fully_shard([net[0], net[2]], **options)  # one unit of two
        fully_shard(net, **options)
        net.set_requires_gradient_sync(False)
        train(net, steps=1)
        net.set_requires_gradient_sync(True)
        net.set_modules_to_forward_prefetch([net[0]])
        net.set_modules_to_backward_prefetch([net[0]])
        net.set_all_reduce_hook(lambda tensor: None)
        train(net)
        net.unshard()
        net.reshard()
        assert nn.utils.clip_grad_norm_(net.parameters(), 1.0) is not None


def test_fsdp2_from_the_meta_device_with_state_dicts():
    with phantom(world_size=8):
        dist.init_process_group("nccl")
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        fully_shard(net)
        net.to_empty(device="cuda")
        for layer in net:
            layer.reset_parameters()
        train(net)
        full = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        assert (full["0.weight"].shape, full["0.weight"].device.type) == ((16, 8), "cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
def test_fsdp1_options(strategy: str, use_orig_params: bool):
    with phantom(world_size=8):
        dist.init_process_group("nccl")
        mesh = {"device_mesh": init_device_mesh("cuda", (2, 4))} if "HYBRID" in strategy else {}
        net = FullyShardedDataParallel(
            model(),
            sharding_strategy=ShardingStrategy[strategy],
            use_orig_params=use_orig_params,
            backward_prefetch=BackwardPrefetch.BACKWARD_POST,
            forward_prefetch=True,
            **mesh,
        )
        with net.no_sync():
            net(torch.randn(2, 8, device="cuda")).sum().backward()
        net.clip_grad_norm_(1.0)
        train(net)
        with FullyShardedDataParallel.summon_full_params(net):
            assert sum(param.numel() for param in net.parameters()) >= 8 * 16 * 2
        for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
            with FullyShardedDataParallel.state_dict_type(net, kind):
                assert net.state_dict()


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_calls_that_scripts_make():
    with phantom(world_size=8):
        dist.init_process_group("cpu:gloo,cuda:nccl", init_method="env://", timeout=None)
        x = torch.ones(4, device="cuda")
        parts = [torch.empty_like(x) for _ in range(8)]
        assert (dist.get_backend(), dist.is_nccl_available(), dist.is_torchelastic_launched()) == ("nccl", True, True)
        assert dist.all_reduce(x, async_op=True).wait()
        assert dist.all_reduce(x, async_op=True).get_future().value()[0] is x
        for call in (dist.gather, dist.scatter):
            call(x, parts)
        dist.all_gather(parts, x)
        dist.reduce_scatter(x, parts)
        dist.all_to_all(parts, parts)
        assert dist.barrier(async_op=True).wait()
        dist.monitored_barrier()
        requests = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, x, 1)]
        assert all(request.wait() for request in dist.batch_isend_irecv(requests))
        objects = [{"a": 1}, 2]
        dist.broadcast_object_list(objects)
        assert objects == [{"a": 1}, 2]
        assert dist.get_world_size(dist.new_group([0, 1], backend="nccl", timeout=None)) == 2
        assert dist.new_subgroups(4)[0].size() == 4
        assert dist.ProcessGroupNCCL.Options() is not None
        dist.destroy_process_group()
        dist.init_process_group("nccl", rank=0, world_size=8)
        assert dist.get_world_size() == 8


def test_another_world_than_the_predicted_one_is_said():
    with phantom(world_size=2) as world:
        dist.init_process_group("nccl", rank=0, world_size=64)
        assert dist.get_world_size() == 2
    assert any("a world of 64" in sentence and "--nproc" in sentence for sentence in world.assumptions.sentences())


def test_processes_that_a_script_starts_are_this_one():
    called = []

    def worker(rank: int, argument: str) -> None:
        called.append((rank, argument))
        dist.init_process_group("nccl", rank=rank, world_size=4)
        train(nn.parallel.DistributedDataParallel(model(), device_ids=[rank]), steps=1)

    with phantom(world_size=4, rank=1):
        torch.multiprocessing.spawn(worker, args=("x",), nprocs=4)
    assert called == [(1, "x")]


def test_sequence_parallelism_with_a_parallel_loss():
    with phantom(world_size=4):
        dist.init_process_group("nccl")
        net = nn.Sequential(nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 64)).cuda()
        plan = {
            "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "1": SequenceParallel(),
            "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(net, init_device_mesh("cuda", (4,)), plan)
        tokens = torch.randint(0, 64, (2, 16), device="cuda")
        with loss_parallel():
            nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        assert net[2].weight.grad.to_local().shape == (16, 32)


def test_buckets_rebuilt_without_sync_live_until_gradients_are_reduced():
    """As measured: benchmarks/truth/more_h200.json, ddp_no_sync."""

    def build():
        torch.distributed.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2048, 2048, device="cuda"))
        x = torch.randn(4, 2048, device="cuda")

        def step():
            with model.no_sync():
                model(x).sum().backward()
            model(x).sum().backward()
            model.zero_grad(set_to_none=True)

        return step

    peaks = [step.peak_allocated for step in memfit.predict(build, steps=3).steps]
    assert peaks[1] - peaks[2] > 15 * 2**20
