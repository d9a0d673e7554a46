"""A tracker is a guest in somebody's training run: it changes nothing, keeps nothing, leaves nothing, and never ends it."""

import gc
import shutil
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.ledger import Ledger, LedgerBuilder
from memfit.record.roles import ModelCalls
from memfit.record.sources.operators.blocks import StorageTable
from memfit.record.sources.operators.handlers import OutputHandlers
from memfit.record.sources.operators.live_position import LivePosition
from memfit.record.sources.operators.recorder import Recorder


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))


def run(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(5, 8, generator=generator)).pow(2).sum()
        loss.backward()
        losses.append(loss.detach().clone())
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients, [p.detach().clone() for p in model.parameters()]


def test_results_are_bit_equal():
    bare = run(model_of())
    model = model_of()
    with memfit.track(model):
        tracked = run(model)
    for left, right in zip(bare, tracked, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_random_numbers_are_the_same():
    torch.manual_seed(3)
    bare = torch.rand(4)
    torch.manual_seed(3)
    with memfit.track():
        tracked = torch.rand(4)
    assert torch.equal(bare, tracked)


def torch_as_patched():
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.nn.modules import module
    from torch.optim import optimizer

    owners = (nn.Module, torch.UntypedStorage, _runtime_utils, FSDPParamGroup, ShardingPropagator)
    hooks = (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    )
    return [dict(vars(owner)) for owner in owners], [dict(hook) for hook in hooks], torch._C._len_torch_dispatch_stack()


def test_nothing_stays_patched():
    before = torch_as_patched()
    model = model_of()
    with memfit.track(model):
        assert torch_as_patched() != before
        run(model, steps=1)
    assert torch_as_patched() == before
    assert not any(p._backward_hooks for p in model.parameters())
    with pytest.raises(RuntimeError, match="mat1 and mat2"), memfit.track(model):
        model(torch.randn(3, 9))
    assert torch_as_patched() == before


def test_a_patch_on_top_of_ours_survives_and_ours_turns_inert():
    original, model = nn.Module.__call__, model_of()
    tracker = memfit.track(model)
    tracker.__enter__()
    ours = nn.Module.__call__
    nn.Module.__call__ = lambda self, *args, **kwargs: ours(self, *args, **kwargs)
    tracker.__exit__(None, None, None)
    try:
        assert model(torch.zeros(1, 8)).shape == (1, 4)
        assert len(tracker.ledger.check().scopes) == 0
    finally:
        nn.Module.__call__ = original


def test_no_tensor_is_kept_alive():
    model = model_of()
    with memfit.track(model) as tracker:
        x = torch.randn(3, 8, requires_grad=True)
        y = model(x)
        watched = [weakref.ref(t) for t in (x, y)]
        y.sum().backward()
        gradient = weakref.ref(model[0].weight.grad)
        model.zero_grad()
        assert gradient() is None
        del x, y
        assert [ref() for ref in watched] == [None, None]
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
    assert len(tracker.ledger.events) > 0


def test_trackers_nest():
    model = model_of()
    x = torch.randn(3, 8)
    with memfit.track(model, x) as outer:
        model(x)
        with memfit.track(model, x) as inner:
            model(x).sum().backward()
        model(x)
    assert (inner.ledger.check().scopes.parent == -1).sum() == 2  # a forward and a backward
    assert (outer.ledger.check().scopes.parent == -1).sum() == 4


def test_a_tracker_can_be_entered_again():
    model = model_of()
    tracker = memfit.track(model)
    for _ in range(2):
        with tracker:
            model(torch.randn(3, 8)).sum().backward()
        model.zero_grad()
    assert (tracker.ledger.check().scopes.parent == -1).sum() == 4


def test_an_exception_in_forward_closes_its_scopes():
    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("broken")

    model = nn.Sequential(nn.Linear(8, 8), Broken())
    x = torch.randn(3, 8)
    with memfit.track(model, x) as tracker:
        for _ in range(2):
            with pytest.raises(KeyError):
                model(x)
        model[0](x).sum().backward()
    ledger = tracker.ledger.check()
    assert ledger.info.complete
    assert (ledger.scopes.parent == -1).sum() == 4


def test_an_exception_in_backward_and_in_an_optimizer():
    def fail(*args):
        raise KeyError("broken")

    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 8)
    with memfit.track(model, optimizer, x) as tracker:
        hidden = model[0](x)
        hidden.register_hook(fail)
        with pytest.raises(KeyError):
            hidden.sum().backward()
        optimizer.param_groups[0]["lr"] = "fast"
        model(x).sum().backward()
        with pytest.raises((TypeError, ValueError)):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1
        model(x).sum().backward()
        optimizer.step()
    ledger = tracker.ledger.check()
    assert ledger.info.complete
    assert (ledger.scope_exit < len(ledger.events)).all()


def test_an_exception_out_of_the_block_leaves_a_whole_ledger(tmp_path):
    model = model_of()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), memfit.track(model, save_to=tmp_path / "run.memfit"):
        model(torch.randn(3, 9))
    ledger = Ledger.load(tmp_path / "run.memfit").check()
    assert ledger.info.complete
    assert len(ledger.scopes) == 2


FAULTS = {
    "an operator": (OutputHandlers, "_on_new"),
    "a module's entry": (ModelCalls, "enter_root"),
    "a module's exit": (Recorder, "exit_module"),
    "following backward": (LivePosition, "_switch_pass"),
    "an optimizer's step": (Recorder, "exit_optimizer"),
    "a new storage": (StorageTable, "add"),
    "the builder": (LedgerBuilder, "enter"),
    "a resize": (Recorder, "resized"),
}


@pytest.mark.parametrize("place", FAULTS)
def test_a_failure_of_ours_is_not_the_runs(monkeypatch, place):
    owner, name = FAULTS[place]
    bare = run(model_of())
    model = model_of()
    before = torch_as_patched()

    def fail(*args, **kwargs):
        raise LookupError("injected")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with memfit.track(model) as tracker:
            monkeypatch.setattr(owner, name, fail)
            torch.empty(4).untyped_storage().resize_(8)
            tracked = run(model)
        monkeypatch.undo()
    told = [str(warning.message) for warning in caught if "memfit" in str(warning.message)]
    assert len(told) == 1
    assert "LookupError: injected" in told[0]
    assert not tracker.ledger.check().info.complete
    assert "injected" in tracker.ledger.info.problem
    assert torch_as_patched() == before
    for left, right in zip(bare, tracked, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_failure_does_not_raise_where_warnings_are_errors(monkeypatch, capsys):
    def fail(*args):
        raise LookupError("injected")

    model = model_of()
    monkeypatch.setattr(OutputHandlers, "_on_new", fail)
    with memfit.track(model):
        run(model, steps=1)
    assert "Your run goes on" in capsys.readouterr().err


def test_a_disk_that_fills_up_loses_neither_the_run_nor_the_ledger(tmp_path):
    model, folder = model_of(), tmp_path / "gone"
    folder.mkdir()
    tracker = memfit.track(model, save_to=folder / "run.memfit")
    tracker.__enter__()
    run(model, steps=1)
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="the recorder failed and detached"):
        tracker.__exit__(None, None, None)
    ledger = tracker.ledger.check()
    assert len(ledger.scopes) > 0
    assert not ledger.info.complete


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match="choose a folder that exists"):
        memfit.track(save_to=tmp_path / "nowhere" / "run.memfit")


def test_other_threads_are_not_part_of_the_run():
    model, done = model_of(), []

    def work():
        done.append(model(torch.randn(3, 8)).sum().item())

    with memfit.track(model) as tracker:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert done
    assert len(tracker.ledger.check().scopes) == 0


KILLED_FIFTY_TIMES = """
import os, signal, sys
import torch, memfit
from torch import nn
import memfit.ledger.builder as builder
builder.FLUSH_NS = 0  # a flush whenever one is possible: many chances to die in one

torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters())

def step():
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def train(path, told):
    with memfit.track(model, optimizer, save_to=path):
        os.write(told, b"x")
        while True:
            step()
            os.write(told, b"x")

step()  # what is imported on first use is imported once, here
for number in range(50):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        train(f"{sys.argv[1]}/{number}.memfit", writing)
    for _ in range(1 + number % 10):
        os.read(reading, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading), os.close(writing)
"""


def test_killed_at_any_moment_the_ledger_loads(tmp_path):
    """Fifty processes, each killed somewhere in the step after the one that it last told of."""
    subprocess.run([sys.executable, "-c", KILLED_FIFTY_TIMES, str(tmp_path)], check=True)
    ledgers = [Ledger.load(tmp_path / f"{number}.memfit").check() for number in range(50)]
    assert not any(ledger.info.complete for ledger in ledgers)
    for number, ledger in enumerate(ledgers):
        assert len(ledger.step_starts) >= number % 10
