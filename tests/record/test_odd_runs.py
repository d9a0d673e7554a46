"""Runs that once hung, crashed or detached the recorder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.hanging import wait_until
from helpers.prepared_process import run_prepared
from torch import nn
from torch.func import functional_call, grad, vmap

import memfit
from memfit.ledger import Category, Ledger
from memfit.record.sources.operators import live_position


def test_sparse_gradients():
    table = nn.Embedding(100, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    with memfit.track(table, optimizer) as tracker:
        for _ in range(2):
            table(torch.tensor([1, 2, 3])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    ledger = tracker.ledger.check()
    assert ledger.info.complete
    assert len(ledger.step_starts) == 2
    gradients = {int(block) for block, role in zip(ledger.roles.block, ledger.roles.role, strict=True) if role == Category.GRADIENT}
    assert len(gradients) >= 2  # indices and values of at least one step


def test_sparse_gradients_are_predicted():
    def build():
        table = nn.Embedding(1000, 16, sparse=True, device="cuda")
        optimizer = torch.optim.SparseAdam(table.parameters())
        tokens = torch.randint(0, 1000, (64,), device="cuda")

        def step():
            table(tokens).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    prediction = memfit.predict(build, steps=2)
    assert prediction.peak_allocated > 3 * 1000 * 16 * 4  # the table and two moments


def test_gradients_by_sample():
    model = nn.Linear(8, 8)
    parameters = dict(model.named_parameters())

    def loss(given, sample):
        return functional_call(model, given, (sample,)).sum()

    with memfit.track(model) as tracker:
        gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.ones(16, 8))
    ledger = tracker.ledger.check()
    assert ledger.info.complete
    assert gradients["weight"].shape == (16, 8, 8)
    assert 16 * 8 * 8 * 4 in ledger.events.size.tolist()


DEEP = """
import threading
import torch, memfit
from memfit.record.sources.operators import live_position
from torch import nn

def train():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4500))
    with memfit.track(layers) as tracker:
        x = torch.ones(1, 2)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        del x
    assert tracker.ledger.check().info.complete
    print("done")

threading.stack_size(2**20)
live_position.MOST_NODES //= 8
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def test_a_very_deep_model_does_not_end_the_process():
    """An eighth of the usual stack, and of the nodes that are asked: so it ends the process at an eighth of the layers."""
    done = run_prepared(DEEP)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_backward_of_a_deep_model_is_of_no_module_after_so_many_nodes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_position, "MOST_NODES", 4)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    with memfit.track(model) as tracker:
        model(torch.ones(1, 2)).sum().backward()
    ledger = tracker.ledger.check()
    assert ledger.info.complete
    backward = {
        ledger.strings[ledger.modules.path[m]]
        for m, p in zip(ledger.scopes.module, ledger.scopes.phase, strict=True)
        if p == 1 and m >= 0
    }
    assert "7" in backward
    assert "0" not in backward


def test_a_loop_without_modules_is_on_disk_while_it_runs(tmp_path: Path):
    """The journal is brought up to date by a thread of its own; only a recorder that never does so waits in vain."""
    path = tmp_path / "run.memfit"
    with memfit.track(save_to=path):
        kept = torch.ones(1000)
        wait_until(lambda: len(Ledger.load(path).events) > 0)
    assert kept.sum() == 1000


def test_copies_that_come_whole_below_autograd():
    """``to`` and its kin are views by their schema; where autograd does not take them apart, they may still be copies."""
    matrix = torch.ones(256, 512)
    with memfit.track(nn.Identity()) as tracker, torch.inference_mode():
        wide, turned = matrix.to(torch.float64), matrix.t().contiguous()
        same, flat = matrix.to(torch.float32), matrix.t().reshape(-1)
    ledger = tracker.ledger.check()
    assert wide.untyped_storage().nbytes() == 2 * turned.untyped_storage().nbytes()
    assert same.data_ptr() == matrix.data_ptr()
    assert flat.data_ptr() != matrix.data_ptr()
    assert sorted(size for size in ledger.block_peak_bytes.tolist() if size > 4096)[-3:] == [2**19, 2**19, 2**20]


@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
def test_ring_attention_keeps_its_merged_output(rotation: str):
    """Context parallelism merges in float32 below autograd; what is kept for backward is a copy in the model's precision."""
    batch, seq, heads, dim, ranks = 1, 4096, 8, 64, 4

    def build():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch.distributed.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("cp",))
        set_rotate_method(rotation)
        inputs = torch.zeros(batch, heads, seq, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)

        def step():
            with torch.no_grad():
                part = inputs.detach().clone()
            with context_parallel(mesh, buffers=[part], buffer_seq_dims=[2]), sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                query, key, value = (part.clone().requires_grad_() for _ in range(3))
                out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
                kept.append(torch.cuda.memory_allocated())
                assert out.shape == (batch, heads, seq // ranks, dim)
                del out
                kept.append(torch.cuda.memory_allocated())

        return step

    kept: list[int] = []
    memfit.predict(build, world_size=ranks, steps=1)
    merged_bytes = batch * heads * seq // ranks * dim * 2
    assert kept[0] - kept[1] >= merged_bytes


def test_a_recorder_that_fails_inside_a_call_leaves_a_lawful_ledger(monkeypatch: pytest.MonkeyPatch):
    """An exception between the beginning of a scope and its place on the stack: too deep a recursion, for one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    enter, num_left = memfit.ledger.LedgerBuilder.enter, iter((1, 1, 0))

    def enter_and_fail(builder, *args, **kwargs):
        scope = enter(builder, *args, **kwargs)
        if not next(num_left, 1):
            raise RecursionError
        return scope

    monkeypatch.setattr(memfit.ledger.LedgerBuilder, "enter", enter_and_fail)
    with pytest.warns(RuntimeWarning, match="the recorder failed"), memfit.track(model) as tracker:
        model(torch.ones(2, 4))
    ledger = tracker.ledger.check()
    assert len(ledger.scopes) == 3
    assert not ledger.info.complete
