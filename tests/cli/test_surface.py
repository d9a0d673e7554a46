"""The command line's surface, frozen: a change here is a change for everyone who has scripted it."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import memfit
from memfit.cli import COMMANDS, GROUPS, build_parser, load, main

SUBJECT = ("--hf", "--model")
RECIPE = (
    *("--axis", "--batch", "--checkpointing", "--compile", "--cp", "--dtype", "--engine", "--ep", "--float8", "--mesh"),
    *("--lora", "--lora-modules", "--microbatches", "--offload", "--optimizer", "--pp", "--precision", "--prefetch", "--quantize"),
    *("--schedule", "--seq", "--strategy", "--tp"),
)
OPTIONS = (
    *("--alloc-conf", "--expected", "--gpu", "--imbalance", "--interconnect", "--longest", "--nproc", "--steps"),
    *("--torch-version", "--world-size"),
)
RANKS = ("--host-memory", "--rank", "--ranks")
OUTPUT = ("--out", "-o")
HELP = ("--help", "-h")

LARGEST = [
    *sorted((*SUBJECT, *RECIPE, *OPTIONS, *HELP, "--jobs", "--json", "--margin", "--multiple", "--no-cache", "--vary")),
    "FILE.py:FUNCTION",
]

SURFACE = {
    "memfit": ["--help", "--version", "-h", "COMMAND"],
    "memfit demo": ["--help", "-h"],
    "memfit show": ["--assumptions", "--help", "--json", "-h", "FILE"],
    "memfit report": ["--gpu", "--help", "--out", "-h", "-o", "FILE"],
    "memfit fit": ["--alloc-conf", "--gpu", "--help", "--json", "--process-groups", "--torch-version", "-h", "FILE"],
    "memfit explain": ["--gpu", "--help", "--json", "--report", "-h", "FILE"],
    "memfit diff": ["--fail-over", "--help", "--json", "--report", "-h", "BEFORE", "AFTER"],
    "memfit export": ["--help", "--out", "--to", "-h", "-o", "FILE"],
    "memfit predict": [*sorted((*SUBJECT, *RECIPE, *OPTIONS, *RANKS, *OUTPUT, *HELP, "--json")), "FILE.py:FUNCTION"],
    "memfit max-batch": LARGEST,
    "memfit max-seq": LARGEST,
    "memfit compare": [
        *sorted((*SUBJECT, *RECIPE, *OPTIONS, *OUTPUT, *HELP, "--csv", "--jobs", "--json", "--no-cache", "--report")),
        "FILE.py:FUNCTION",
    ],
    "memfit plan": [
        *sorted(
            (
                *(*SUBJECT, *RECIPE, *OPTIONS, *OUTPUT, *HELP, "--allow", "--budget", "--executor", "--global-batch", "--json"),
                *("--emit", "--jobs", "--margin", "--no-cache", "--predictions", "--refine", "--report"),
            )
        ),
        "FILE.py:FUNCTION",
    ],
    "memfit run": [
        *sorted((*OPTIONS, *RANKS, *OUTPUT, *HELP, "--json", "--max-seconds", "--plan", "--unprotected", "--write", "-m")),
        *("SCRIPT", "ARGUMENTS"),
    ],
    "memfit train": ["--help", "--plan", "-h", "COMMAND"],
    "memfit watch": ["--against", "--every", "--first", "--help", "--out", "--save-to", "-h", "-o", "COMMAND"],
    "memfit top": ["--help", "--interval", "--json", "--once", "-h", "FILE"],
    "memfit calibrate": ["--from", "--help", "--name", "--out", "--predicted", "--seconds", "-h", "-o"],
    "memfit completion": ["--help", "-h", "SHELL"],
    "memfit doctor": ["--gpu", "--help", "--json", "--patches", "-h"],
    "memfit serve": ["--help", "--host", "--no-cache", "--no-open", "--port", "-h", "FOLDER"],
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
    assert {f"memfit {name}" for name in COMMANDS} == {name for name in SURFACE if " " in name}


def test_the_help_has_every_command_in_a_group(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for title, commands in GROUPS.items():
        assert f"{title}:" in said
        assert all(f"\n  {command} " in said for command in commands)


def test_every_command_has_examples_that_can_be_read():
    parser = build_parser()
    for name, command in parser.commands.choices.items():
        assert command.examples, name
        for line, what in (*command.examples, *parser.examples):
            assert what
            words = shlex.split(line)[1:]
            split = getattr(load(words[0]), "split_program", None)
            assert parser.parse_args(split(words)[0] if split is not None else words).command in COMMANDS


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["pred"], "memfit: error: there is no command 'pred'; did you mean predict?"),
        (["train.py"], "a script is predicted by memfit run train.py"),
        (["predict", "--modle", "gpt2"], "memfit predict: error: unrecognized arguments: --modle; did you mean --model?"),
        (["predict", "--model", "gpt2", "--budget", "4GiB"], "unrecognized arguments: --budget; memfit plan has --budget"),
        (["predict", "train.py"], "train.py is a script: memfit run train.py predicts it as it is"),
        (["predict", "gpt2"], "or name a model: --model gpt2, model='gpt2' in Python"),
        (["predict", "--hf", "org/never-fetched"], "hf download org/never-fetched config.json"),
    ],
)
def test_a_word_that_was_meant_otherwise(words: list[str], advice: str, capsys: pytest.CaptureFixture[str]):
    status: object = None
    try:
        status = main(words)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert advice in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"memfit {memfit.__version__}\n"


def test_out_means_the_same_in_every_command():
    for flags in SURFACE.values():
        assert ("--out" in flags) == ("-o" in flags)


@pytest.mark.parametrize("argv", [[], ["dance"], ["diff"], ["show", "--loud", "x"]], ids=str)
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

    monkeypatch.setattr(load("show"), "run", run)
    assert main(["show", str(tmp_path / "run.memfit")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "more memory than there is" in line


def test_a_prediction_of_a_model_loads_neither_comparisons_nor_plans(tmp_path: Path):
    code = (
        "import sys; from memfit.cli import main; assert main(sys.argv[1:]) == 0; "
        "sys.exit(any(name.startswith(('memfit.compare.', 'memfit.plan.')) for name in sys.modules))"
    )
    words = ["predict", "--model", "gpt2", "--seq", "64", "--steps", "1", "--out", str(tmp_path / "run.memfit")]
    assert subprocess.run([sys.executable, "-c", code, *words], capture_output=True).returncode == 0


def test_a_function_that_reads_the_command_line_finds_none_of_memfits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import argparse\nimport torch\n"
        "def build():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--width', type=int, default=8)\n"
        "    model = torch.nn.Linear(parser.parse_args().width, 8).cuda()\n"
        "    return lambda: model(torch.ones(1, 8, device='cuda')).sum().backward()\n"
    )
    monkeypatch.setattr("sys.argv", ["memfit", "predict", "train.py:build"])
    assert main(["predict", "train.py:build", "--gpu", "T4"]) == 0
