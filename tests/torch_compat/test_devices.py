"""A device kind of our own, torch's defaults, CUDA's side and process groups, as memfit uses them."""

from __future__ import annotations

import torch
from helpers.prepared_process import run_prepared
from torch import nn

from memfit.torch_compat import devices, distributed

REGISTERED = """
import torch
from memfit.torch_compat.devices import BackendGuard, BackendHooks, private_backend_name, register_python_backend

assert private_backend_name() == "privateuseone"

class Hooks(BackendHooks):
    def is_available(self):
        return True

class Guard(BackendGuard):
    pass

class Module:
    def is_available(self): return True
    def device_count(self): return 1
    def current_device(self): return 0

register_python_backend("ours", Module(), Hooks(), Guard())
assert private_backend_name() == "ours"
assert torch.device("ours").type == "ours"
print("done")
"""


def test_a_device_kind_is_registered_for_the_life_of_a_process():
    done = run_prepared(REGISTERED)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert callable(devices.register_python_backend)


def test_functions_that_follow_a_default_device():
    assert torch.ones in devices.factory_functions()
    assert devices.default_device_context() is None
    with torch.device("meta"):
        assert torch.ones(1).is_meta
    torch.set_default_device("meta")
    try:
        assert devices.default_device_context().device == torch.device("meta")
    finally:
        torch.set_default_device(None)


def test_parameters_for_which_optimizers_choose_their_foreach_form(monkeypatch):
    assert nn.Parameter in devices.optimizer_foreach_types
    assert torch.Tensor in devices.clipping_foreach_types


def test_cudas_side():
    assert isinstance(devices.is_cudnn_enabled(), bool)
    assert devices.raw_stream_getter(torch.device("cpu")) is None
    assert issubclass(torch.profiler.profile, devices.ProfilerBase)
    assert all(hasattr(torch.cuda.jiterator, name) for name in devices.jit_compilers)
    assert hasattr(devices.TORCH_C, "_get_accelerator")


def test_buckets_follow_from_sizes():
    tensors = [torch.ones(4), torch.ones(4), torch.ones(4)]
    groups = distributed.bucket_assignment(tensors, [16, 32], [False] * 3)[0]
    assert sorted(index for group in groups for index in group) == [0, 1, 2]
    assert len(groups) == 2


def test_a_group_without_peers_and_who_asks_for_tracing():
    torch.distributed.init_process_group("fake", store=distributed.fake_store(), rank=0, world_size=4)
    try:
        torch.distributed.all_reduce(torch.ones(1))
    finally:
        torch.distributed.destroy_process_group()
    assert all(callable(module._are_we_tracing) for module in distributed.modules_that_ask_for_tracing())
    assert hasattr(distributed.sharding_propagation(), "ShardingPropagator")
