"""``memfit run`` and ``memfit predict``: where their words go, and what stands next to the verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.prepared_process import MEMFIT, run_prepared

from memfit.cli import main, outputs
from memfit.predict.scripts import stopping

PRINTING = """
import os
import subprocess
import sys
import torch

print("from Python")
os.write(1, b"from below\\n")
subprocess.run([sys.executable, "-c", "print('from a child')"])
weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
for _ in range(3):
    torch.randn(4, device="cuda").sum().item()
    weight.sum().backward()
    optimizer.step()
"""

NOT_TRAINING = "import torch\nprint(torch.ones(4, device='cuda').sum().item())\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PRINTING)
    Path("idle.py").write_text(NOT_TRAINING)


def test_json_is_alone_on_the_standard_output():
    done = subprocess.run([sys.executable, "-m", "memfit", "run", "--json", "train.py"], capture_output=True, text=True)
    assert json.loads(done.stdout)["fits"] is True
    for place in ("Python", "below", "a child"):
        assert f"from {place}\n" in done.stderr


def test_without_json_the_script_prints_where_it_always_does():
    done = run_prepared(MEMFIT, "run", "-o", "x.memfit", "train.py")
    assert "from Python\n" in done.stdout
    assert "from Python" not in done.stderr
    assert Path("x.memfit").is_file()


def test_the_verdict_says_what_it_is_about_and_how_much_was_assumed(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "train.py"]) == 0
    found = capsys.readouterr()
    assert "losses and scores that the script prints are made up" in found.err
    lines = [line.strip() for line in found.out.splitlines()]
    verdict = next(number for number, line in enumerate(lines) if line.startswith("It fits on H200"))
    assert lines[verdict + 1] == "train.py on H200"
    assert lines[verdict + 2].startswith("Seen: 3 training steps")
    assert lines[verdict + 3].startswith("allocated")
    assert any(line.endswith("assumptions (memfit show --assumptions)") for line in lines)
    assert main(["show", "--assumptions"]) == 0
    assert "train.py:13" in capsys.readouterr().out


def test_a_run_that_never_trained_is_not_said_to_fit(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "idle.py"]) == 0
    printed = capsys.readouterr().out
    assert "Not known whether it fits on H200: no training step was seen" in printed
    assert "It fits" not in printed
    assert main(["run", "--json", "idle.py"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["fits"] is None
    assert figures["problem"].startswith("no training step was seen")
    assert main(["show", "run.memfit"]) == 0
    assert "incomplete: no training step was seen" in capsys.readouterr().out


def test_progress_is_told_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    assert main(["run", "train.py"]) == 0
    assert not any("step" in line for line in capfd.readouterr().err.splitlines())
    monkeypatch.setattr(outputs, "_is_watched", lambda: True)
    monkeypatch.setattr(stopping, "TELL_SECONDS", 0.0)
    assert main(["run", "train.py"]) == 0
    told = capfd.readouterr().err.splitlines()
    assert {line.partition(",")[0] for line in told} >= {"memfit: 1 training step", "memfit: 2 training steps"}
