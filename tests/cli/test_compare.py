"""``memfit compare`` and ``memfit predict --model``, as they are typed."""

import csv
import io
import json
from pathlib import Path

import pytest
from helpers.compare_cells import cell
from rich.console import Console

from memfit.cli import main
from memfit.cli.commands import compare as command
from memfit.compare import Comparison
from memfit.job import Subject
from memfit.units import GIB


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the command asks for; the answer is made by hand."""
    calls = []

    def answer(function, **options):
        calls.append({"function": function} | options)
        options["progress"](cell(), 1, 1)
        cells = (cell(30, checkpointing="full"), cell(70), cell(None, strategy="no_shard"))
        found = {"varying": ("strategy", "checkpointing"), "gpus": ("H100-80GB",), "left_out": ("no_shard: too large",)}
        return Comparison(subjects=(Subject(model="llama3-8b"),), cells=cells, **found)

    monkeypatch.setattr(command, "compare", answer)
    return calls


def test_flags_become_axes(asked: list[dict]):
    flags = (
        "--strategy full_shard,no_shard --world-size 8,64 --batch 1,2 --dtype bf16 --gpu H100,A100-40GB --axis a=1,x --axis b=True"
    )
    assert main(["compare", "--model", "llama3-8b", *flags.split(), "--no-cache", "--jobs", "3"]) == 0
    (call,) = asked
    assert call["strategy"] == ["full_shard", "no_shard"]
    assert (call["world_size"], call["batch"], call["precision"]) == ([8, 64], [1, 2], ["bf16"])
    assert (call["gpu"], call["a"], call["b"]) == (["H100", "A100-40GB"], [1, "x"], [True])
    assert (call["cache"], call["jobs"], "seq" in call) == (False, 3, False)


def test_the_table(asked: list[dict], capsys: pytest.CaptureFixture[str]):
    assert main(["compare", "--model", "llama3-8b"]) == 0
    out = capsys.readouterr().out
    assert "llama3-8b, 8.03 billion parameters, on H100-80GB" in out
    assert "8 GPUs, fsdp2, batch 1, seq 8192, bf16-mixed, adamw" in out
    first, second = (" ".join(line.split()) for line in out.splitlines() if "GiB left" in line)
    assert first == "full_shard full 30.00 GiB fits, 50.00 GiB left backward activation"
    assert second == "> full_shard none 70.00 GiB fits, 10.00 GiB left backward activation +40.00 GiB activation"
    assert "no_shard  none  it broke" in out
    assert "left out: no_shard: too large" in out
    assert "Run full_shard with no checkpointing on H100-80GB" in " ".join(out.split())


@pytest.mark.parametrize(("width", "extras"), [(120, ["backward", "activation"]), (85, ["backward"]), (72, [])])
def test_a_narrow_terminal_gets_what_decides(width: int, extras: list[str], asked: list[dict]):
    console = Console(width=width, file=io.StringIO())
    console.print(command.compare("", progress=lambda cell, done, total: None))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.count("activation") for line in lines) == {120: 3, 85: 0, 72: 0}[width], "no word is broken"
    assert ["full_shard", "full", "30.00", "GiB", "fits,", "50.00", "GiB", "left", *extras] in [line.split() for line in lines]
    assert not any("…" in line for line in lines)


def test_a_row_for_several_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The first GPU speaks for the row; each recommends its own."""
    small = {"capacity": 40 * GIB, "fits": False, "margin": -30 * GIB}
    cells = [cell(70), cell(71, small, gpu="A100-40GB"), cell(30, checkpointing="full")]
    cells.append(cell(29, {"capacity": 40 * GIB, "margin": 11 * GIB}, gpu="A100-40GB", checkpointing="full"))
    found = {"varying": ("gpu", "checkpointing"), "gpus": ("H100-80GB", "A100-40GB")}
    made = Comparison(subjects=(Subject(model="llama3-8b"),), cells=tuple(cells), **found)
    monkeypatch.setattr(command, "compare", lambda *args, **options: made)
    main(["compare", "--model", "llama3-8b"])
    first, second = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if "left" in line)
    assert first.startswith("> full 30.00 GiB fits, 50.00 GiB left fits, 11.00 GiB left")
    assert second.startswith("> none 70.00 GiB fits, 10.00 GiB left 30.00 GiB short")


def test_json_and_csv(asked: list[dict], capsys: pytest.CaptureFixture[str]):
    main(["compare", "--model", "llama3-8b", "--json"])
    cells = json.loads(capsys.readouterr().out)
    assert [(each.get("fits"), each.get("error")) for each in cells] == [(True, None), (True, None), (None, "it broke")]
    assert cells[0]["mesh"] is None
    main(["compare", "--model", "llama3-8b", "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["checkpointing"] for row in rows] == ["full", "none", "none"]


def test_all_failed_is_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    failed = type(cell())(configuration=cell().configuration, error="it broke", details="Traceback:\n  build()")
    found = Comparison(subjects=(Subject(model="gpt2"),), cells=(failed,), varying=(), gpus=("T4",))
    monkeypatch.setattr(command, "compare", lambda *args, **options: found)
    assert main(["compare", "--model", "gpt2"]) == 1
    assert "Traceback:\n  build()" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--model", "lama3-8b"], "did you mean llama3-8b"),
        ([], "say what is trained"),
        (["--model", "gpt2", "--batch", "1,,2"], "with commas between"),
        (["--model", "gpt2", "--world-size", "many"], "world-size takes whole numbers, not 'many'"),
        (["--model", "gpt2", "--axis", "layers"], "write it like layers=2,4"),
        (["--model", "gpt2", "--axis", "layers=2"], "a model by name has no axis 'layers'"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_a_line(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", *argv]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_predict_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run.memfit"
    flags = ["--gpu", "H100-80GB", "--world-size", "8", "--seq", "64", "--steps", "1", "--checkpointing", "full"]
    assert main(["predict", "--model", "gpt2", *flags, "--out", str(out)]) == 0
    assert "It fits on H100-80GB" in capsys.readouterr().out
    assert out.exists()


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--model", "gpt2", "--batch", "1,2"], "memfit compare takes several"),
        (["--model", "gpt2", "nowhere.py:build"], "write it like train.py:build"),
        ([], "say what is trained"),
        (["--model", "gpt2", "--engine", "ddp", "--strategy", "full_shard", "--world-size", "2"], "DDP shards nothing"),
    ],
    ids=str,
)
def test_mistakes_in_a_prediction(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]):
    assert main(["predict", *argv]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error
