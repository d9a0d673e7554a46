"""Runs that once hung, crashed or detached the recorder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.hanging import wait_until
from torch import nn
from torch.func import functional_call, grad, vmap

import memfit
from memfit.ledger import Category, Ledger
from memfit.record import position


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
import torch, memfit
from torch import nn

layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(35_000))
with memfit.track(layers) as tracker:
    x = torch.ones(1, 2)
    for layer in layers:
        x = layer(x)
    x.sum().backward()
    del x
assert tracker.ledger.check().info.complete
print("done")
"""


def test_a_very_deep_model_does_not_end_the_process():
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_backward_of_a_deep_model_is_of_no_module_after_so_many_nodes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(position, "MOST_NODES", 4)
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
