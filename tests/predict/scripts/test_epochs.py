"""When memory has settled, an epoch is cut short, and what follows it is seen: an evaluation, an error, nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from memfit.job import PredictOptions
from memfit.predict.result import Prediction
from memfit.predict.scripts import stopping
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds

Run = Callable[..., tuple[Prediction, str]]

START = """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def train(batch):
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("t")

def evaluate():
    with torch.no_grad():
        model(torch.randn(2**18, 64, device="cuda"))
    print("e")

def loader(**options):
    return DataLoader(torch.randn(800, 64), batch_size=8, **options)
"""
EVALUATION_BYTES = 2 * 2**18 * 64 * 4

EPOCHS = """
batches = loader()
for _ in range(10):
    for batch in batches:
        train(batch)
    evaluate()
"""
SAME_ITERATOR = EPOCHS.replace("loader()", "loader(num_workers=1, persistent_workers=True, multiprocessing_context='fork')")
"""Scripts without a guard of their main part have other workers than forked ones nowhere; Python 3.14 no longer forks by itself."""
ONE_AHEAD = """
def one_ahead(batches):
    batches = iter(batches)
    ahead = next(batches)
    for batch in batches:
        yield ahead
        ahead = batch
    yield ahead

for _ in range(10):
    for batch in one_ahead(loader()):
        train(batch)
    evaluate()
"""
NEVER_ENDING = """
def forever():
    while True:
        yield from loader()

for batch in forever():
    train(batch)
"""
BY_HAND = """
batches = iter(loader())
for _ in range(100):
    train(next(batches))
evaluate()
"""
ALL_AT_ONCE = """
first = iter(loader())
batches = [next(first) for _ in range(50)]
for batch in batches:
    train(batch)
evaluate()
"""

AT_ONCE = 1e-9
"""The first forward pass finds that there is no time left."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Predicts a script; gives the prediction, and the letters that it printed."""
    monkeypatch.chdir(tmp_path)

    def predict(script: str, **bounds: float) -> tuple[Prediction, str]:
        Path("train.py").write_text(START + script)
        prediction = run_script(
            read_command(["train.py"]), PredictOptions(gpu="H100", torch_version="2.11+cu130"), Bounds(**bounds)
        ).prediction
        return prediction, capsys.readouterr().out.replace("\n", "")

    return predict


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(EPOCHS, "te", id="an evaluation after each epoch"),
        pytest.param(SAME_ITERATOR, "te", id="workers that stay"),
        pytest.param(ONE_AHEAD, "tte", id="batches that are fetched ahead"),
    ],
)
def test_an_evaluation_after_an_epoch_is_seen(script: str, expected: str, run: Run):
    prediction, printed = run(script, max_seconds=AT_ONCE)
    assert printed == expected  # and the first step of the next epoch, which ends before it prints
    assert prediction.fits
    assert prediction.peak_allocated > EVALUATION_BYTES
    assert not any("epoch" in sentence for sentence in prediction.assumptions)


H100 = PredictOptions(gpu="H100", torch_version="2.11+cu130")


def test_no_evaluation_costs_little(run: Run):
    prediction, printed = run(NEVER_ENDING, max_seconds=AT_ONCE)
    assert printed == "t"
    assert prediction.fits


def test_steps_that_are_given_are_all(run: Run):
    prediction, printed = run(EPOCHS, steps=4)
    assert printed == "ttt"
    assert prediction.peak_allocated < EVALUATION_BYTES


def test_a_script_that_cannot_do_with_less_data_is_predicted_without_what_follows(run: Run):
    prediction, printed = run(BY_HAND, max_seconds=AT_ONCE)
    assert printed == "t"
    assert prediction.fits
    assert any("to see what follows it, and that failed (StopIteration" in sentence for sentence in prediction.assumptions)


def test_data_that_are_there_already_are_not_waited_for(run: Run):
    prediction, printed = run(ALL_AT_ONCE, max_seconds=AT_ONCE)
    assert printed == "tt"
    assert prediction.fits


def test_an_error_before_memory_has_settled_is_the_scripts(run: Run):
    with pytest.raises(Exception, match="too early"):
        run('train(next(iter(loader())))\nraise ValueError("too early")')


def test_what_follows_is_not_waited_for_without_end(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "AFTERWARDS_SECONDS", 0.0)
    monkeypatch.setattr(stopping, "AFTERWARDS_SHARE", 0.0)
    prediction, printed = run(EPOCHS, max_seconds=AT_ONCE)
    assert printed == ""
    assert any("not followed to its end" in sentence for sentence in prediction.assumptions)


# -- the longest batch of data that are not at hand --------------------------------------------------------------------------------

TOKENS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def collate(rows):
    return {"ids": torch.tensor(rows), "weight": torch.ones(len(rows), 4), "length": torch.tensor([4] * len(rows))}
for batch in DataLoader([[1, 2, 3, 0]] * 24, batch_size=4, collate_fn=collate, shuffle=SHUFFLE):
    print(batch["ids"].shape[1], batch["weight"].shape[1], batch["length"].shape[0], batch["ids"][:2, -1].tolist())
    model(batch["ids"].cuda()).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def run_longest(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prediction:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    return run_script(read_command(["train.py"]), PredictOptions(gpu="T4", expected={"longest": 512})).prediction


def test_a_batch_is_as_long_as_the_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    prediction = run_longest(TOKENS.replace("SHUFFLE", "False"), tmp_path, monkeypatch)
    usual, longest = "4 4 4 [0, 0]", "512 512 4 [1, 0]"  # the first row goes on, the second is padded
    assert capsys.readouterr().out.splitlines() == [usual, usual, longest, usual, usual, usual]
    assert prediction.covered.longest_batch == "4 x 512"
    assert prediction.fits


def test_where_no_batch_can_be_made_longer_nothing_is_said_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = START + "for batch in loader():\n    train(batch)\n    break\n"
    prediction = run_longest(script, tmp_path, monkeypatch)
    assert not prediction.fits
    assert "no batch of 512 tokens was seen" in prediction.problem
