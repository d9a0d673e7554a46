"""``memfit show``, in this process and as a command of its own."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.hanging import HANGS_AFTER

from memfit.cli import main
from memfit.cli.commands import show
from memfit.ledger import Ledger
from memfit.testing import ledger

COMMAND = [sys.executable, "-c", "import sys; from memfit.cli import main; sys.exit(main())"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.memfit"
    ledger("alloc 4MiB parameter a.w; step; enter forward a; alloc 1MiB x; exit; free x").save(path)
    return path


def test_it_prints_the_report(path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{path}\nmeasured, 1 step, 6 events\n\ncpu  peak 5.00 MiB  in step 0, forward of a\n")
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_several_files_come_one_after_the_other(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "other.memfit"
    ledger("alloc 1KiB x").save(other)
    assert main(["show", str(path), str(other)]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line in (str(path), str(other))] == [str(path), str(other)]
    assert printed.index("peak 5.00 MiB") < printed.index(str(other)) < printed.index("peak 1.00 KiB")


def test_json_is_one_object_a_line(path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", "--json", str(path), str(path)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["file"] == str(path)
    assert first["devices"][0]["peak"]["size_bytes"] == 5 * 2**20


@pytest.mark.parametrize("content", [None, b"", b"noise"], ids=["missing", "empty", "noise"])
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]):
    bad = tmp_path / "bad\n.memfit"
    if content is not None:
        bad.write_bytes(content)
    assert main(["show", str(bad)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("memfit: error: ")
    assert printed.err.count("\n") == 1


def test_a_ledger_that_contradicts_itself_is_told_in_one_line(path: Path, capsys: pytest.CaptureFixture[str]):
    good = Ledger.load(path)
    replace(good, events=replace(good.events, size=-good.events.size)).save(path)
    assert main(["show", str(path)]) == 2
    assert "breaks its own laws" in capsys.readouterr().err


def test_an_interrupted_command_says_so_and_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "_read", interrupt)
    assert main(["show", str(path)]) == 130
    assert capsys.readouterr().err == "memfit: stopped\n"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_goes_away_is_no_error(path: Path, options: list[str]):
    process = subprocess.Popen(
        [*COMMAND, "show", *options, *[str(path)] * 100], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_terminal_gets_colour_and_a_sign_of_life(path: Path):
    text = _on_a_terminal([*COMMAND, "show", str(path)])
    assert "\x1b[34m" in text
    assert "Reading run.memfit" in text


def test_without_a_terminal_nobody_is_shown_progress(path: Path):
    environment = os.environ | {"FORCE_COLOR": "1"}
    done = subprocess.run([*COMMAND, "show", str(path)], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    assert "Reading" not in done.stdout


def test_an_ascii_only_output_is_no_error(tmp_path: Path):
    ledger("enter forward größe; alloc 1MiB x").save(tmp_path / "run.memfit")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "show", str(tmp_path / "run.memfit")], capture_output=True, check=True, env=environment)
    assert b"gr\\xf6\\xdfe" in done.stdout


def _on_a_terminal(command: list[str]) -> str:
    """What a command writes to a terminal, both streams together."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = io.BytesIO()
    try:
        while chunk := os.read(ours, 4096):
            text.write(chunk)
    except OSError:
        pass  # how Linux says that the other side has closed
    os.close(ours)
    assert process.wait(timeout=HANGS_AFTER) == 0
    return text.getvalue().decode()
