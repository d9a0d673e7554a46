"""Ctrl-C and SIGTERM: what is known so far is told, and the exit status says that it is no more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from memfit.cli import main
from memfit.compare.api import STOPPED
from memfit.predict.scripts import dry_run

TRAINING = """
import os, signal, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(1000):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 4:
        os.kill({whom}, signal.{name})
"""

BUILDING = """
import os, signal, torch
def build():
    weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    number = iter(range(10))
    def step():
        if next(number) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        (weight @ weight).sum().backward()
    return step
"""


@pytest.mark.parametrize(
    ("whom", "name", "status"),
    [
        *(("os.getpid()", "SIGINT", 0), ("os.getpid()", "SIGTERM", 0)),
        *(("os.getppid()", "SIGINT", 130), ("os.getppid()", "SIGTERM", 143)),
    ],
    ids=["the script has it", "the script has SIGTERM", "memfit itself has it, from no terminal", "memfit itself has SIGTERM"],
)
def test_a_script_that_is_stopped_leaves_its_verdict(whom, name, status, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(dry_run, "_is_in_the_foreground", lambda: False)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINING.format(whom=whom, name=name))
    assert main(["run", "--gpu", "T4", "train.py"]) == status
    printed = capsys.readouterr().out
    assert "What was seen of it fits on T4" in printed
    assert "not to its end" in printed
    assert Path("run.memfit").is_file()


def test_a_prediction_that_is_stopped_does_not_say_that_it_fits(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BUILDING)
    assert main(["predict", "--gpu", "T4", "train.py:build"]) == 130
    printed = capsys.readouterr().out
    assert "Not known whether it fits on T4: it was stopped in step 1 of 3, counted from 0" in printed
    assert "A step takes" not in printed


def test_a_comparison_that_is_stopped_shows_what_is_done(tmp_path: Path, monkeypatch, capsys):
    from memfit.compare import api

    def stop_after_one(cells, known, num_lanes, progress):
        done = api.Cell(configuration=cells[0], error="predicted, and failed")
        progress(done, 1, len(cells))
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal comes first")

    def stopped(cells, known, num_lanes, progress):
        try:
            return stop_after_one(cells, known, num_lanes, progress)
        except KeyboardInterrupt:
            return tuple(api.Cell(configuration=cell, error=STOPPED) for cell in cells)

    monkeypatch.setattr(api, "predict_cells", stopped)
    assert main(["compare", "--model", "gpt2", "--gpu", "T4", "--batch", "1,2", "--no-cache"]) == 130
    assert "memfit: stopped\n" in capsys.readouterr().err


def test_handlers_are_as_they_were(tmp_path: Path, capsys):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["show", str(tmp_path / "nothing.memfit")]) == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_search_for_the_largest_says_what_is_known_when_it_is_stopped(monkeypatch, capsys):
    from memfit.cli.commands.largest import asking

    def stopped(axis, subject, words):
        words["progress"](2, 5, 16)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal comes first")

    monkeypatch.setattr(asking, "find", stopped)
    assert main(["max-batch", "--model", "gpt2"]) == 130
    assert capsys.readouterr().err.splitlines() == ["memfit: batch 16 fits", "memfit: stopped"]
