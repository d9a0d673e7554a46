"""The largest batch of a model, a function and a script: the next one does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memfit
from memfit.cli import main
from memfit.errors import ConfigError

FUNCTION = """
import torch

def build(*, rows):
    weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
    def step():
        (torch.zeros(rows * 1024, 1024, device="cuda") @ weight).sum().backward()
        weight.grad = None
    return step
"""
SCRIPT = """
import sys, torch
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
for _ in range(2):
    (torch.zeros(int(sys.argv[1]) * 1024, 1024, device="cuda") @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_a_function_and_in_words(tmp_path: Path):
    (tmp_path / "rows.py").write_text(FUNCTION)
    found = memfit.max_batch(f"{tmp_path}/rows.py:build", gpu="T4", vary="rows", cache=False, jobs=1, steps=1)
    tried = {each.number: each for each in found.tried}
    assert tried[found.value].needed <= found.capacity < tried[found.value + 1].needed
    assert f"The largest rows that fits: {found.value:,}." in str(found)
    assert f"{found.value + 1:,} needs" in str(found)


def test_of_a_script_the_braces_are_the_number(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (script := tmp_path / "train.py").write_text(SCRIPT)
    assert main(["max-batch", "--gpu", "T4", "--multiple", "512", "--steps", "1", "--json", str(script), "{}"]) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    tried = {each["number"]: each for each in found["tried"]}
    assert tried[found["largest"]]["smallest_fit"] <= found["capacity"] < tried[found["largest"] + 512]["smallest_fit"]


def test_what_is_looked_for_is_not_given(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match="leave --batch out"):
        memfit.max_batch(model="gpt2", batch=4)
    assert main(["max-batch", "train.py", "--batch-size", "4"]) == 2
    assert "Write {} in its place" in capsys.readouterr().err


def test_a_model_that_cannot_fit_by_its_bound_is_predicted_once():
    found = memfit.max_seq(model="gpt2", gpu="T4", batch=512, cache=False, jobs=1, steps=1)
    assert (found.value, [each.number for each in found.tried]) == (0, [128])
    assert "Nothing fits: a sequence of 128 needs" in str(found)
