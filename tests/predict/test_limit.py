"""Where the named GPU's memory runs out, the run is told as CUDA tells it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.prepared_process import MEMFIT, run_prepared
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator import AllocatorSettings
from memfit.errors import RanOutError
from memfit.hardware import find_gpu
from memfit.job import PredictOptions
from memfit.ledger import LedgerBuilder
from memfit.ledger.schema import Blocks, EventKind, Events
from memfit.predict.limit import MemoryLimit, limited_first
from memfit.predict.ranks import RankOutcome
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds
from memfit.record.out_of_memory import read_message
from memfit.units import GIB, MIB

START = """
import torch
from torch import nn
def make():
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    return model, torch.optim.AdamW(model.parameters())
def train(model, optimizer, rows):
    model(torch.randn(rows, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SKIPPING = """
model, optimizer = make()
for rows in (1000, 700_000, 2000, 900_000, 3000, 3000):
    try:
        train(model, optimizer, rows)
        print("trained", rows)
    except torch.OutOfMemoryError as error:
        assert "CUDA out of memory. Tried to allocate" in str(error)
        optimizer.zero_grad()
        print("skipped", rows)
"""

FINDING = """
rows = 2**21
while True:
    try:
        model, optimizer = make()
        for _ in range(3):
            train(model, optimizer, rows)
        break
    except RuntimeError:
        model = optimizer = None
        rows //= 2
print("found", rows)
"""

IN_BACKWARD = """
model, optimizer = make()
train(model, optimizer, 1000)
loss = model(torch.randn(290_000, 1024, device="cuda")).sum()
print("forward")
try:
    loss.backward()
except torch.OutOfMemoryError:
    print("out of memory in backward")
loss = None
for _ in range(3):
    train(model, optimizer, 1000)
"""

UNCAUGHT = """
model, optimizer = make()
for rows in (1000, 1000, 1_000_000):
    train(model, optimizer, rows)
"""

GIVING_UP = """
model, optimizer = make()
try:
    train(model, optimizer, 1_000_000)
except torch.OutOfMemoryError:
    pass
raise ValueError("no batch is small enough")
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def predict(script: str, gpu: str = "T4", *, is_limited: bool = True) -> RankOutcome:
    Path("train.py").write_text(START + script)
    bounds = Bounds(steps=4)
    return run_script(
        read_command(["train.py"]), PredictOptions(gpu=gpu, torch_version="2.11+cu130"), bounds, is_limited=is_limited
    )


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(
            SKIPPING, "trained 1000\nskipped 700000\ntrained 2000\nskipped 900000\ntrained 3000\n", id="batches are skipped"
        ),
        pytest.param(FINDING, "found 131072\n", id="a batch size is looked for"),
        pytest.param(IN_BACKWARD, "forward\nout of memory in backward\n", id="backward runs out"),
    ],
)
def test_a_script_that_catches_it_goes_on(script: str, printed: str, capsys: pytest.CaptureFixture[str]):
    prediction = predict(script).prediction
    assert capsys.readouterr().out == printed
    assert prediction.fits
    assert prediction.verdict.peak_reserved <= find_gpu("T4").capacity()
    assert any("memory ran out" in sentence and "T4" in sentence for sentence in prediction.assumptions)
    prediction.ledger.check()


def test_on_a_larger_gpu_nothing_runs_out(capsys: pytest.CaptureFixture[str]):
    prediction = predict(SKIPPING, "H200").prediction
    assert "skipped" not in capsys.readouterr().out
    assert not any("memory ran out" in sentence for sentence in prediction.assumptions)


@pytest.mark.parametrize("script", [UNCAUGHT, GIVING_UP])
def test_a_run_that_ends_says_where_it_ran_out(script: str):
    with pytest.raises(RanOutError, match="forward") as caught:
        predict(script)
    assert caught.value.asked_bytes == 1_000_000 * 4096 * 4


def test_what_it_would_have_needed_is_found_without_the_limit():
    told: list[RanOutError] = []
    found = limited_first(lambda is_limited: predict(UNCAUGHT, is_limited=is_limited), told.append)
    assert len(told) == 1
    assert not found.prediction.fits
    assert found.prediction.peak_allocated > 50 * GIB


def test_the_command_line_says_it_and_goes_on():
    Path("train.py").write_text(START + UNCAUGHT)
    done = run_prepared(MEMFIT, "run", "--gpu", "T4", "--steps", "3", "train.py")
    assert "memory ran out (step 2, forward of 0)" in done.stderr
    assert "It does not fit on T4" in done.stdout


def test_the_words_are_those_that_are_read_from_cuda():
    gpu = find_gpu("T4")
    builder = LedgerBuilder()
    limit = MemoryLimit(builder, "cuda:0", gpu, 0, AllocatorSettings)
    device = builder.device("cuda:0")

    def take(block: int) -> None:
        limit.take(block, 400 * MIB, device, 0)
        builder.alloc(400 * MIB, device, 0)

    num_served = gpu.capacity() // (400 * MIB)
    for block in range(num_served):
        take(block)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as caught:
        take(num_served)
    failure = read_message(str(caught.value))
    assert failure.device == "cuda:0"
    assert failure.needed_bytes == 400 * MIB
    assert failure.total_bytes == pytest.approx(gpu.usable_bytes, rel=0.001)
    assert failure.allocated_bytes == pytest.approx(num_served * 400 * MIB, rel=0.001)


@st.composite
def stretches(draw: st.DrawFn) -> tuple[Events, Blocks]:
    """Events of blocks on two devices; blocks 0 to 2 were there before."""
    held, kinds, subjects, sizes, devices = [0, 1, 2], [], [], [], []
    for _ in range(draw(st.integers(0, 12))):
        if held and draw(st.booleans()):
            kinds.append(EventKind.FREE)
            subjects.append(held.pop(draw(st.integers(0, len(held) - 1))))
            sizes.append(0)
        else:
            kinds.append(EventKind.ALLOC)
            subjects.append(3 + len(devices))
            sizes.append(draw(st.sampled_from([0, MIB, 200 * MIB, 3 * GIB, 6 * GIB])))
            held.append(subjects[-1])
            devices.append(draw(st.integers(0, 1)))
    events = Events(*(np.array(column, dtype=np.int64) for column in (kinds, subjects, sizes, [0] * len(kinds))))
    zeros = np.zeros(len(devices), dtype=np.int64)
    return events, Blocks(np.array(devices, dtype=np.int64), zeros, zeros, zeros)


def begun() -> MemoryLimit:
    """Blocks 0 and 2 are on the limited device, block 1 is on another."""
    builder = LedgerBuilder()
    devices = [builder.device("cuda:0"), builder.device("cpu")]
    limit = MemoryLimit(builder, "cuda:0", find_gpu("T4"), 0, AllocatorSettings)
    for block, device in enumerate((devices[0], devices[1], devices[0])):
        limit.take(block, 500 * MIB, device, 7)
        builder.alloc(500 * MIB, device, 0, stream=7)
    return limit


@given(stretches())
def test_a_stretch_served_at_once_is_as_served_one_by_one(stretch: tuple[Events, Blocks]):
    events, blocks = stretch
    at_once, one_by_one = begun(), begun()
    num_served = 0
    try:
        for kind, subject, size in zip(events.kind.tolist(), events.subject.tolist(), events.size.tolist(), strict=True):
            if kind == EventKind.ALLOC:
                device = int(blocks.device[subject - 3])
                one_by_one.take(subject, size, device, 0)
                one_by_one._builder.alloc(size, device, 0)
            else:
                one_by_one.give_back(subject)
                one_by_one._builder.free(subject)
            num_served += 1
    except torch.OutOfMemoryError:
        pass
    assert at_once.serve(events, blocks, 3) == num_served
    for name in ("_in_use", "_sizes", "_streams"):
        assert getattr(at_once, name) == getattr(one_by_one, name)
    assert [refusal.failure for refusal in at_once.refusals] == [refusal.failure for refusal in one_by_one.refusals]
    live, other = at_once._live, one_by_one._live
    assert live is None or other is None or (live.allocated, live.reserved) == (other.allocated, other.reserved)
    for block in sorted(one_by_one._sizes):  # what is left can be given back, and its memory taken again
        one_by_one.give_back(block)
        at_once.give_back(block)
    assert at_once._in_use == one_by_one._in_use == 0
    if live is not None and other is not None:
        assert (live.allocated, live.reserved) == (0, other.reserved)


def test_a_stretch_with_resized_blocks_is_served_one_by_one():
    events = Events(*(np.array(column, dtype=np.int64) for column in ([EventKind.RESIZE], [0], [MIB], [0])))
    assert begun().serve(events, Blocks(*(np.zeros(0, dtype=np.int64) for _ in range(4))), 3) is None
