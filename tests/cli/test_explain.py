"""``memfit explain`` as a user sees it."""

import json
import pickle
from pathlib import Path

import pytest
from helpers.failed_runs import SPLIT, TRAINING, failed
from helpers.torch_snapshots import AT_THE_OOM

from memfit.cli import main
from memfit.testing import ledger


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["explain", *argv]) == 0
    return capsys.readouterr().out


def test_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    failed(TRAINING, 200, 820).save(tmp_path / "oom.memfit")
    out = run(capsys, str(tmp_path / "oom.memfit"))
    assert "cuda:0 ran out of memory (step 0, backward of layer): aten.mm.default asked for 200.00 MiB." in out
    assert "In use: 820.00 MiB. Reserved: 820.00 MiB of the 1,000.00 MiB that the allocator can get; 180.00 MiB are left." in out
    assert "activation       400.00 MiB  48.8%" in out
    assert "What would have made it fit, each tried by replay up to the failure" in out
    assert "yes   half the micro-batch" in out
    assert "note: a micro-batch of one sequence cannot be halved: there, a part of it is a shorter sequence" in out
    assert "note: what would have come after the failure is not known" in out


def test_holes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    failed(SPLIT, 600, 500).save(tmp_path / "oom.memfit")
    out = run(capsys, str(tmp_path / "oom.memfit"))
    assert "Reserved, but not usable for this request" in out
    assert "200.00 MiB       2  150.00 MiB  in pieces smaller than the request" in out


def test_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(AT_THE_OOM))
    out = run(capsys, str(tmp_path / "snapshot.pickle"))
    assert "cuda:0 ran out of memory (train.py:33 in step): it asked for 300.00 MiB." in out
    assert "train.py:33 in step       2  400.00 MiB" in out
    assert "category" not in out.split("note:")[0]


def test_a_gpu_that_is_too_small_and_one_that_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger("alloc 20GiB parameter w on cuda:0").save(tmp_path / "run.memfit")
    out = run(capsys, str(tmp_path / "run.memfit"), "--gpu", "t4")
    assert "On T4 it would run out of memory (before the first step): w asks for 20.00 GiB." in out
    assert "What would make it fit, each tried by replay\n" in out
    out = run(capsys, str(tmp_path / "run.memfit"), "--gpu", "h200")
    assert out == "On H200 it does not run out of memory: 20.00 GiB of 138.98 GiB are enough.\n"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    failed(TRAINING, 200, 820).save(tmp_path / "oom.memfit")
    found = json.loads(run(capsys, str(tmp_path / "oom.memfit"), "--json"))
    assert (found["asked"], found["ran_out"], found["file"]) == (200 * 2**20, True, str(tmp_path / "oom.memfit"))


def test_names_from_a_stranger_are_only_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    failed("alloc 300MiB parameter a\x1b[2J.w on cuda:0", 900, 300).save(tmp_path / "oom.memfit")
    out = run(capsys, str(tmp_path / "oom.memfit"))
    assert "\x1b" not in out
    assert "a\\x1b[2J" in out


@pytest.mark.parametrize("argv", [["nothing.memfit"], ["run.memfit"], ["run.memfit", "--gpu", "abacus"]])
def test_mistakes_are_told_in_a_line(argv: list[str], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    ledger("alloc 1MiB w on cuda:0").save("run.memfit")
    assert main(["explain", *argv]) == 2
    assert capsys.readouterr().err.startswith("memfit: error: ")
