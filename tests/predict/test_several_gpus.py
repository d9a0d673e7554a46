"""Several GPUs in one process are judged one by one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from memfit.job import PredictOptions
from memfit.predict.result import Prediction
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds
from memfit.units import GIB

SPLIT = """
import torch
from torch import nn
first, second = nn.Linear(1024, 1024).to("cuda:0"), nn.Linear(1024, {width}).to("cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for _ in range(3):
    second(first(torch.randn(64, 1024, device="cuda:0")).to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def predict(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prediction:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SPLIT.format(width=width))
    options = PredictOptions(gpu="T4", torch_version="2.11+cu130")
    return run_script(read_command(["train.py"], num_processes=2), options, Bounds(steps=2)).prediction


@pytest.mark.parametrize(("width", "fits"), [(1024, True), (2_000_000, False)])
def test_each_gpu_has_a_verdict(width: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prediction = predict(width, tmp_path, monkeypatch)
    assert prediction.verdict.fits
    assert [*prediction.verdicts_of_others] == ["cuda:1"]
    other = prediction.verdicts_of_others["cuda:1"]
    assert other.fits is prediction.fits is fits
    assert (other.peak_allocated > 14 * GIB) is not fits
    console = Console(file=io.StringIO(), width=120)
    console.print(prediction)
    assert f"cuda:1: {'fits' if fits else 'does not fit'}" in console.file.getvalue()
