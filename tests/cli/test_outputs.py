"""An output that cannot be written is refused before the work, and a full disk loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.prepared_process import run_prepared

from memfit.cli import main
from memfit.cli.outputs import check_output
from memfit.errors import ConfigError
from memfit.testing import ledger

TRAIN = """
import pathlib
pathlib.Path(__file__).with_name("was-run").touch()

def build():
    import torch
    model = torch.nn.Linear(8, 8, device="cuda")
    return lambda: model(torch.ones(2, 8, device="cuda")).sum().backward()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ledger("alloc 4MiB parameter w on cuda:0; step; alloc 1MiB x on cuda:0; free x").save(tmp_path / "run.memfit")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def commands(folder: Path) -> dict[str, list[str]]:
    return {
        "predict": ["predict", f"{folder / 'train.py'}:build", "--out"],
        "run": ["run", "--out"],
        "report": ["report", str(folder / "run.memfit"), "--out"],
        "export": ["export", str(folder / "run.memfit"), "--to", "csv", "-o"],
    }


@pytest.mark.parametrize("command", ["predict", "run", "report", "export"])
@pytest.mark.parametrize("out", ["missing/out", ".", "run.memfit/out", "x" * 300, "/proc/out"])
def test_it_is_refused_before_the_work(command: str, out: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    before = sorted(folder.rglob("*"))
    argv = [*commands(folder)[command], str(folder / out), *([str(folder / "train.py")] if command == "run" else [])]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("memfit: error: cannot write ")
    assert said.count("\n") == 1
    assert sorted(folder.rglob("*")) == before, "something was done, or left behind"


def test_a_ledger_does_not_take_the_place_of_a_device(folder: Path, capsys: pytest.CaptureFixture[str]):
    os.mkfifo(folder / "pipe")
    assert main([*commands(folder)["predict"], str(folder / "pipe")]) == 2
    assert "it is a pipe or a device, and would be replaced" in capsys.readouterr().err
    assert (folder / "pipe").is_fifo()


def test_an_export_can_go_to_a_device(folder: Path):
    assert main([*commands(folder)["export"], os.devnull]) == 0
    assert not Path(os.devnull).is_file()


def test_what_is_there_stays_as_it_is(folder: Path):
    (folder / "out").write_text("before")
    check_output(folder / "out", "--out")
    assert (folder / "out").read_text() == "before"
    with pytest.raises(ConfigError, match="null"):
        check_output(Path("a\0b"), "--out")


# -- a disk that fills up in the meantime ------------------------------------------------------------------------------------

FULL_DISK = """
import contextlib, io, resource, signal, sys, tempfile
from memfit.cli import main

said, complained = io.StringIO(), io.StringIO()
tempfile.gettempdir()  # tried out by writing
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
    status = main(sys.argv[1:])
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
sys.stdout.write(said.getvalue())
sys.stderr.write(complained.getvalue())
sys.exit(status)
"""
"""A command while files can be made, but not written. It has a process of its own: pytest's output may be a file too."""


@pytest.mark.parametrize("command", ["report", "export"])
def test_a_full_disk_leaves_what_was_there(command: str, folder: Path):
    before = (folder / "run.memfit").read_bytes()
    os.link(folder / "run.memfit", folder / "out")
    done = run_prepared(FULL_DISK, *commands(folder)[command][:-1], "-o", str(folder / "copy"))
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert not (folder / "copy").exists()
    assert (folder / "out").read_bytes() == before


def test_a_full_disk_does_not_take_the_answer(folder: Path):
    done = run_prepared(FULL_DISK, *commands(folder)["predict"], str(folder / "out.memfit"))
    assert done.returncode == 2
    assert "It fits on H200" in done.stdout
    assert "cannot write" in done.stderr
    assert not (folder / "out.memfit").exists()


def test_lines_in_a_pipe_end_where_their_words_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "run.memfit"
    ledger("alloc 4MiB parameter layers.0.weight on cuda:0; step; alloc 8MiB x on cuda:0; free x; step").save(path)
    assert main(["show", str(path)]) == 0
    assert main(["fit", str(path), "--gpu", "T4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(" ")] == []
