"""A verdict says what it has seen."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from memfit.job import PredictOptions
from memfit.ledger import Coverage, Ledger
from memfit.predict.result import Prediction
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds
from memfit.views.verdicts import coverage_words

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, batch in enumerate(DataLoader(torch.zeros(46, 8), batch_size=8)):
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 2:
        with torch.no_grad():
            for _ in range(3):
                model(torch.zeros(20, 8, device="cuda"))
        torch.save(model.state_dict(), "model.pt")
        torch.save(optimizer.state_dict(), "optimizer.pt")
"""

READING = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
with torch.inference_mode():
    for rows in (4, 16, 4):
        model(torch.zeros(rows, 8, device="cuda"))
"""


def predict(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **bounds: int) -> Prediction:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    return run_script(read_command(["train.py"]), PredictOptions(gpu="T4"), Bounds(**bounds)).prediction


def printed(prediction: Prediction) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(prediction)
    return console.file.getvalue()


def test_a_training_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prediction = predict(TRAINING, tmp_path, monkeypatch)
    expected = Coverage(training_steps=6, kinds_of_batches=3, longest_batch="20 x 8", forward_passes=15, evaluations=3, saves=3)
    assert prediction.covered == expected
    assert prediction.fits
    assert "It fits on T4" in printed(prediction)
    assert "Seen: 6 training steps, 3 shapes of batches, the largest 20 x 8, 3 evaluations, 3 saves; up to its end." in printed(
        prediction
    )


def test_a_run_that_is_stopped_is_judged_by_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prediction = predict(TRAINING, tmp_path, monkeypatch, steps=2)
    assert not prediction.covered.is_whole
    assert "What was seen of it fits on T4" in printed(prediction)
    assert "It fits" not in printed(prediction)
    assert "what comes later may need more" in printed(prediction)


def test_a_run_without_training_has_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prediction = predict(READING, tmp_path, monkeypatch)
    assert prediction.fits
    assert prediction.covered == Coverage(kinds_of_batches=2, longest_batch="16 x 8", forward_passes=3, evaluations=1)
    assert "Seen: no training, 2 shapes of batches, the largest 16 x 8, 3 forward passes" in printed(prediction)


def test_the_ledger_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prediction = predict(READING, tmp_path, monkeypatch)
    prediction.ledger.save("run.memfit")
    assert Ledger.load("run.memfit").info.covered == prediction.covered


@pytest.mark.parametrize("stored", [None, [], {"training_steps": "many", "evaluations": 2}, {"unknown": 1}])
def test_what_a_file_says_wrongly_is_left_out(stored: object):
    found = Coverage.from_json(stored)
    assert found.training_steps == 0
    assert coverage_words(found) == ""


def test_where_an_epoch_was_cut_is_said():
    words = coverage_words(Coverage(is_whole=False, training_steps=812, batches_seen=812, batches_in_all=2000, forward_passes=812))
    assert "812 of 2,000 batches of this epoch" in words
