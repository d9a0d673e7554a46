"""Leaving the phantom world restores everything that is reachable from torch, after errors too."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.utils.cpp_extension
from helpers.phantom_worlds import phantom
from torch import nn

HARMLESS = ("_memfit", "__warningregistry__", "__abstractmethods__", "_abc_impl")

RENEWED = (
    "torch._dynamo.graph_bytecode_inputs",
    "torch._decomp.decompositions_for_rng.PhiloxStateTracker",
    "torch._functorch._aot_autograd.graph_capture_wrappers.PhiloxStateTracker",
    "torch._functorch.aot_autograd.PhiloxStateTracker",
    "torch._functorch._aot_autograd.logging_utils",
    "torch._inductor.async_compile.CompiledTritonKernels",
    "torch._inductor.codegen.triton.TritonKernelOverrides",
    "torch._inductor.debug",
    "torch.fx.traceback",
)
"""What torch makes anew for each graph that it compiles, on whatever device, and nobody reads afterwards."""


def everything() -> dict[tuple[str, str], int]:
    """Every attribute of every module and class of torch, by identity; counters count on."""
    found: dict[tuple[str, str], int] = {}
    for name, module in [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] == "torch"]:
        owners = {name: module} if issubclass(type(module), ModuleType) else {}
        owners |= {f"{name}.{key}": value for key, value in vars(module).items() if issubclass(type(value), type)} if owners else {}
        for owner, value in owners.items():
            if owner in RENEWED:
                continue
            found |= {
                (owner, key): id(item) for key, item in list(vars(value).items()) if key not in HARMLESS and type(item) is not int
            }
    return found


def differences(before: dict, after: dict) -> set:
    """New modules may come; whatever was there must be the same."""
    owners = {owner for owner, _ in before}
    new = {key for key in after.keys() - before.keys() if key[0] in owners and "phantom" not in key[1]}
    return {key for key in before if before[key] != after.get(key)} | new


def busy() -> None:
    """A little of everything that replaces something late, or leaves something behind."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
    torch.compile(model)(torch.randn(2, 4, device="cuda")).sum().backward()
    torch.optim.AdamW(model.parameters()).step()
    torch.save(model.state_dict(), "nowhere.pt")
    torch.load("nowhere.pt")
    torch.distributed.init_process_group("nccl")
    nn.parallel.DistributedDataParallel(model)
    torch.distributed.fsdp.fully_shard(nn.Linear(4, 4).cuda())
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    torch.set_grad_enabled(False)
    torch.cuda.set_device(0)


@pytest.fixture(scope="module", autouse=True)
def _entered_once():
    """Registers the device kind, and imports what torch imports late."""
    with phantom(world_size=2):
        busy()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_torch_is_as_it_was(error: type[BaseException] | None):
    before, environment, paths = everything(), dict(os.environ), list(sys.meta_path)
    try:
        with phantom(world_size=2):
            assert len(differences(before, everything())) > 200  # the comparison can fail
            busy()
            if error is not None:
                raise error
    except BaseException as raised:
        assert type(raised) is error  # noqa: PT017
    assert differences(before, everything()) == set()
    assert (dict(os.environ), sys.meta_path) == (environment, paths)
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled
    assert (torch.empty(1).device.type, torch.get_default_dtype(), torch.is_grad_enabled()) == ("cpu", torch.float32, True)
    assert torch.get_default_device().type == "cpu"
    assert not torch.distributed.is_initialized()
    assert not torch.accelerator.is_available() or torch.cuda.is_available()


def test_flags_that_a_script_froze_stay_so(monkeypatch):
    """``torch.backends.disable_global_flags`` is for good: then no flag can have changed, and none is set."""
    before = torch.backends.cudnn.benchmark
    with phantom():
        monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
    assert torch.backends.cudnn.benchmark == before
    with pytest.raises(RuntimeError, match="not allowed to set"):
        torch.backends.cudnn.benchmark = not before


def test_entering_that_fails_half_way_restores_torch(monkeypatch):
    from memfit.phantom import kernels

    before = everything()
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "install", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            phantom().__enter__()
    assert differences(before, everything()) == set()


def test_caches_do_not_remember_the_phantom_gpu():
    from torch.utils._triton import has_triton

    outside = has_triton()
    with phantom():
        has_triton()
        torch.set_default_device("cuda")
        assert torch.tensor([1]).is_cuda
    assert has_triton() == outside
    with torch.device("meta"):
        assert torch.tensor([1]).is_meta  # the list of factory functions holds torch's own


def test_a_model_from_outside_gets_its_data_back():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8))
    model[1].weight = model[0].weight
    weight, data, mean = model[0].weight, model[0].weight.detach().clone(), model[2].running_mean
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        with phantom():
            model.cuda()
            assert model[0].weight is model[1].weight is weight is optimizer.param_groups[0]["params"][0]
            assert weight.is_cuda
            model(torch.zeros(3, dtype=torch.int64, device="cuda")).sum().backward()
            optimizer.step()
        assert model[0].weight is model[1].weight is weight
        assert (type(weight), weight.device.type, weight.grad) == (nn.Parameter, "cpu", None)
        assert torch.equal(weight, data)
        assert model[2].running_mean is mean
    model(torch.arange(3)).exp().sum().backward()
    optimizer.step()
    assert not torch.equal(weight, data)


def test_nothing_is_kept_alive():
    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    with phantom():
        busy_model = nn.Linear(8, 8).cuda()
        busy_model(torch.randn(2, 8, device="cuda")).sum().backward()
    del busy_model
    before = tensors()
    for _ in range(3):
        with phantom():
            nn.Linear(8, 8).cuda()(torch.randn(2, 8, device="cuda")).sum().backward()
    assert tensors() <= before


def test_importing_memfit_changes_nothing_in_torch():
    code = (
        "import torch, torch.cuda, torch.distributed\n"
        "owners = (torch, torch.Tensor, torch.cuda, torch.distributed, torch.nn.Module, torch._C)\n"
        "before = [dict(vars(owner)) for owner in owners]\n"
        "import memfit, memfit.predict, memfit.phantom\n"
        "changed = {key for owner, was in zip(owners, before) for key, value in was.items()\n"
        "           if callable(value) and vars(owner).get(key) is not value}\n"
        "assert not changed, changed\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
