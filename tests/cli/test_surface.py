"""The command line's surface, frozen: a change here is a change for everyone who has scripted it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import memfit
from memfit.cli import COMMANDS, build_parser, main

SURFACE = {
    "memfit": ["--help", "--version", "-h", "COMMAND"],
    "memfit demo": ["--help", "-h"],
    "memfit show": ["--help", "--json", "-h", "FILE"],
    "memfit report": ["--gpu", "--help", "--out", "-h", "-o", "FILE"],
    "memfit fit": ["--alloc-conf", "--gpu", "--help", "--json", "--process-groups", "--torch-version", "-h", "FILE"],
    "memfit explain": ["--gpu", "--help", "--json", "-h", "FILE"],
    "memfit diff": ["--fail-over", "--help", "--json", "-h", "BEFORE", "AFTER"],
    "memfit export": ["--help", "--out", "--to", "-h", "-o", "FILE"],
    "memfit predict": [
        *(
            "--alloc-conf",
            "--batch",
            "--checkpointing",
            "--compile",
            "--cp",
            "--dtype",
            "--engine",
            "--ep",
            "--expected",
            "--float8",
            "--gpu",
            "--help",
            "--hf",
            "--interconnect",
        ),
        *(
            "--json",
            "--mesh",
            "--microbatches",
            "--model",
            "--offload",
            "--optimizer",
            "--out",
            "--pp",
            "--precision",
            "--prefetch",
        ),
        *("--rank", "--ranks", "--schedule", "--seq", "--steps", "--strategy", "--torch-version", "--tp", "--world-size"),
        *("-h", "-o", "FILE.py:FUNCTION"),
    ],
    "memfit compare": [
        *("--alloc-conf", "--axis", "--batch", "--checkpointing", "--compile", "--cp", "--csv", "--dtype", "--engine", "--ep"),
        *("--float8", "--gpu", "--help", "--hf"),
        *("--jobs", "--json", "--mesh", "--microbatches", "--model", "--no-cache", "--offload", "--optimizer", "--pp"),
        *("--precision", "--prefetch", "--schedule", "--seq"),
        *("--steps", "--strategy", "--torch-version", "--tp", "--world-size", "-h", "FILE.py:FUNCTION"),
    ],
    "memfit plan": [
        *(
            "--alloc-conf",
            "--allow",
            "--axis",
            "--batch",
            "--budget",
            "--checkpointing",
            "--compile",
            "--cp",
            "--dtype",
            "--engine",
        ),
        *("--ep", "--executor", "--float8", "--global-batch", "--gpu", "--help", "--hf", "--interconnect", "--json", "--margin"),
        *("--mesh", "--microbatches", "--model", "--no-cache", "--offload", "--optimizer", "--out", "--pp", "--precision"),
        *("--predictions", "--prefetch", "--refine", "--report", "--schedule", "--seq", "--steps", "--strategy"),
        *("--torch-version", "--tp", "--world-size", "-h", "-o", "FILE.py:FUNCTION"),
    ],
    "memfit run": [
        *(
            "--alloc-conf",
            "--expected",
            "--gpu",
            "--help",
            "--interconnect",
            "--json",
            "--max-seconds",
            "--nproc",
            "--out",
            "--rank",
            "--ranks",
            "--steps",
        ),
        *("--torch-version", "--unprotected", "--write", "-h", "-m", "-o", "SCRIPT", "ARGUMENTS"),
    ],
    "memfit watch": ["--against", "--every", "--first", "--help", "--save-to", "-h", "COMMAND"],
    "memfit top": ["--help", "--interval", "--json", "--once", "-h", "FILE"],
    "memfit doctor": ["--help", "--json", "--patches", "-h"],
}


def surface(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The options and arguments of a parser and of its commands, by name."""
    found = {parser.prog: sorted(name for action in parser._actions for name in action.option_strings)}
    found[parser.prog] += [str(action.metavar or action.dest) for action in parser._actions if not action.option_strings]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= surface(command)
    return found


def test_the_surface_is_what_it_was():
    assert surface(build_parser()) == SURFACE


def test_commands_are_listed_under_their_own_names():
    assert [f"memfit {name}" for name in COMMANDS] == [name for name in SURFACE if " " in name]


def test_the_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"memfit {memfit.__version__}\n"


def test_out_means_the_same_in_every_command():
    for flags in SURFACE.values():
        assert ("--out" in flags) == ("-o" in flags)


@pytest.mark.parametrize("argv", [[], ["dance"], ["show"], ["show", "--loud", "x"]], ids=str)
def test_a_command_line_that_cannot_be_meant(argv: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "memfit" in capsys.readouterr().err


def test_too_little_memory_on_this_machine_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run(args: object) -> int:
        raise MemoryError

    monkeypatch.setattr(COMMANDS["show"], "run", run)
    assert main(["show", str(tmp_path / "run.memfit")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "more memory than there is" in line
