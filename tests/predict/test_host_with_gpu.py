"""On a machine with a GPU, a prediction leaves it alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from helpers.hanging import HANGS_AFTER

ALONE = """
import torch
from torch import nn

import memfit
import memfit.errors


def build():
    assert torch.cuda.get_device_name() == "NVIDIA A100-40GB"
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def work():
    weight = torch.full((8, 8), 0.5, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()
    assert bool((weight.grad == 2).all())
    return torch.cuda.memory_allocated()


first = memfit.predict(build, gpu="A100-40GB")
second = memfit.predict(build, gpu="A100-40GB")
assert second.peak_allocated == first.peak_allocated
assert not torch.cuda.is_initialized()
work()
held = torch.ones(1024, device="cuda")
before = torch.cuda.memory_allocated()
try:
    memfit.predict(build, gpu="A100-40GB")
except memfit.errors.ConfigError as refused:
    assert "in a process of its own" in str(refused)
else:
    raise AssertionError("a process that has used its GPU is not for predictions")
assert torch.cuda.memory_allocated() == before
assert float(held.sum()) == 1024
work()
print("alone")
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_prediction_leaves_the_gpu_alone():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=HANGS_AFTER)
    assert done.stdout.strip() == "alone", done.stderr[-3000:]
