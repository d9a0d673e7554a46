"""A program that only starts the training is left for the training."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from memfit.cli import main

TRAIN = """
import json, os, sys
import torch
print("TOLD", json.dumps([sys.argv[1:], os.environ.get("WORLD_SIZE"), os.environ.get("FLAVOUR")]))
weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""

needs_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")


def told_by(starter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[object]:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("start.py").write_text(starter)
    assert main(["run", "--json", "start.py"]) == 0
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("TOLD "))
    found: list[object] = json.loads(line.removeprefix("TOLD "))
    return found


STARTERS = {
    "torchrun as a command": (
        "import subprocess\nsubprocess.run(['torchrun', '--nproc-per-node', '4', 'train.py', '--lr', '1'])",
        "4",
    ),
    "torchrun by Python": (
        "import subprocess, sys\n"
        "subprocess.check_call([sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node=2', 'train.py', '--lr', '1'])",
        "2",
    ),
    "torchrun as a function": (
        "from torch.distributed import run\nrun.main(['--standalone', '--nproc-per-node=2', 'train.py', '--lr', '1'])",
        "2",
    ),
}


@pytest.mark.parametrize("name", STARTERS)
def test_what_a_program_launches_is_followed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    starter, world_size = STARTERS[name]
    starter = "import os\nos.environ['FLAVOUR'] = 'sour'\n" + starter
    assert told_by(starter, tmp_path, monkeypatch, capfd) == [["--lr", "1"], world_size, "sour"]


AGAIN = {
    "execv": "os.execv(sys.executable, [sys.executable, *sys.argv, '--lr', '1'])",
    "execvp": "os.execvp('python3', ['python', 'train.py', '--lr', '1'])",
    "execve": "os.execve(sys.executable, [sys.executable, *sys.argv, '--lr', '1'], os.environ)",
    "execl": "os.execl(sys.executable, sys.executable, 'train.py', '--lr', '1')",
    "orig_argv": "os.execv(sys.executable, [*sys.orig_argv, '--lr', '1'])",
}


@pytest.mark.parametrize("way", AGAIN)
@pytest.mark.parametrize("nproc", ["1", "4"])
def test_a_script_that_starts_itself_again_is_followed(
    way: str, nproc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    starts = f"import os, sys\nif 'FLAVOUR' not in os.environ:\n    os.environ['FLAVOUR'] = 'sour'\n    {AGAIN[way]}\n"
    Path("train.py").write_text(starts + TRAIN)
    assert main(["run", "--json", "--nproc", nproc, "train.py"]) == 0
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("TOLD "))
    assert json.loads(line.removeprefix("TOLD ")) == [["--lr", "1"], nproc, "sour"]


def test_a_script_that_becomes_another_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import os\nos.execvp('ls', ['ls', '-l'])\n")
    assert main(["run", "train.py"]) == 2
    assert "the script replaces itself by another program" in capfd.readouterr().err


def test_forks_of_a_script_become_other_programs_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    start = "import os\nif os.fork() == 0:\n    os.execvp('echo', ['echo', 'forked'])\nos.wait()\n"
    Path("train.py").write_text(start + TRAIN)
    assert main(["run", "--json", "train.py"]) == 0
    assert "forked" in "".join(capfd.readouterr())


@needs_accelerate
def test_accelerates_launcher_is_followed_where_a_program_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    starter = (
        "from accelerate.commands.launch import launch_command, launch_command_parser\n"
        "launch_command(launch_command_parser().parse_args(['--num_processes=1', '--num_machines=1', '--mixed_precision=no', "
        "'--dynamo_backend=no', 'train.py', '--lr', '1']))"
    )
    assert told_by(starter, tmp_path, monkeypatch, capfd)[0] == ["--lr", "1"]


def test_another_python_program_runs_for_real_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("prepare.py").write_text("print('prepared')")
    Path("start.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'prepare.py'], check=True)\n" + TRAIN)
    assert main(["run", "--json", "start.py"]) == 0
    out, err = capfd.readouterr()
    assert "prepared" in out + err
    assert any("prepare.py" in assumption for assumption in json.loads(out.splitlines()[-1])["assumptions"])


def test_programs_that_start_each_other_come_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("start.py").write_text("import subprocess\nsubprocess.run(['torchrun', 'start.py'])")
    assert main(["run", "start.py"]) == 2
    assert "name the training script itself" in capsys.readouterr().err
