"""The history of a real GPU: the peak is what CUDA counted, to the byte."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from helpers.leaks import LEAKS, watch
from torch import nn

import memfit
from memfit.analysis import find_peak
from memfit.errors import ConfigError
from memfit.ledger import Category
from memfit.record.sources.allocator.retention import Retention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def train(steps=8):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        F.cross_entropy(net(torch.randn(64, 3, 32, 32, device="cuda")), torch.randint(0, 10, (64,), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


def test_the_peak_is_what_cuda_counted():
    torch.cuda.reset_peak_memory_stats()
    with memfit.track() as tracker:
        net = train()
        counted = torch.cuda.max_memory_allocated()
    ledger = tracker.ledger.check()
    peak = find_peak(ledger, ledger.main_device)
    assert ledger.info.witness == "allocator"
    assert ledger.info.complete
    assert peak.size_bytes == counted
    asked = sum(parameter.numel() * 4 for parameter in net.parameters())
    assert asked <= peak.breakdown[Category.PARAMETER] < asked + 2**21


def test_a_second_reader_of_the_history_is_refused_or_takes_the_operators():
    with memfit.track() as first:
        assert first.ledger.info.witness == "allocator"
        assert memfit.track().ledger.info.witness == "operators"
        with pytest.raises(ConfigError, match="somebody else is keeping it"):
            memfit.track(witness="allocator")


def test_what_a_dispatch_mode_breaks_runs_and_is_the_same():
    def run():
        torch.manual_seed(0)
        scores = torch.randn(50, 16, 20, device="cuda").log_softmax(2).requires_grad_()
        F.ctc_loss(scores, torch.randint(1, 20, (16, 30), device="cuda"), torch.full((16,), 50), torch.full((16,), 30)).backward()
        return scores.grad

    bare = run()
    with memfit.track():
        tracked = run()
    assert torch.equal(bare, tracked)


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_is_named(kind):
    training, where = LEAKS[kind]
    ledger, _ = watch(training, lambda: memfit.track(retention=Retention(every=1000)), "cuda")
    assert any(where in alarm for alarm in ledger.info.alarms), ledger.info.alarms


def test_a_recording_may_begin_before_cuda_does():
    program = "import memfit, torch\nwith memfit.track() as t:\n    torch.ones(8, device='cuda')\nprint(t.ledger.info.witness)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, "allocator"), ran.stderr
