"""Run by test_forking.py in a process of its own: a prediction in a child process says what it says in this one.

Torch refuses to copy a process whose autograd has threads, and so may the process that runs other tests.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import memfit
from memfit.errors import ConfigError, NoGpuWorkError, PredictionError, StepFailedError
from memfit.predict import api, session


def build():
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "has_a_gpu_to_spare", lambda: True)


class UnsendableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def broken():
    raise UnsendableError("nowhere to go", "")


def test_the_users_error_comes_back_with_its_traceback(apart: None):
    with pytest.raises(StepFailedError, match=r"build failed") as caught:
        memfit.predict(broken)
    assert "in broken" in caught.value.users_traceback
    assert "nowhere to go" in str(caught.value.error)


def test_our_own_errors_come_back(apart: None):
    with pytest.raises(ConfigError, match=r"must return step\(\)"):
        memfit.predict(lambda: 3)
    with pytest.raises(PredictionError, match="nothing was put on cuda:0") as caught:
        memfit.predict(lambda: lambda: None)
    assert type(caught.value) in (NoGpuWorkError, PredictionError)


def test_a_child_that_dies_is_told(apart: None):
    with pytest.raises(PredictionError, match="exit status 7"):
        memfit.predict(lambda: os._exit(7))


def test_a_process_that_used_its_gpu_is_refused(apart: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="in a process of its own"):
        memfit.predict(build)


def test_a_process_whose_autograd_cannot_be_copied_is_refused_too(apart: None):
    def refused():
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    with pytest.raises(ConfigError, match="in a process of its own"):
        memfit.predict(refused)


def test_wherever_it_is_refused(apart: None, monkeypatch: pytest.MonkeyPatch):
    def refuse():
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(session, "calibrate", refuse)
    with pytest.raises(ConfigError, match="in a process of its own"):
        memfit.predict(build)


# The last: from here on this process has made predictions itself.
def test_the_same_figures(apart: None, monkeypatch: pytest.MonkeyPatch):
    there = memfit.predict(build, gpu="A100-40GB")
    monkeypatch.undo()
    here = memfit.predict(build, gpu="A100-40GB")
    assert there.ledger.check().events.size.tolist() == here.ledger.events.size.tolist()
    assert (there.smallest_fit, there.peak_reserved) == (here.smallest_fit, here.peak_reserved)
    assert there.assumptions == here.assumptions
    assert str(there.verdict) == str(here.verdict)
