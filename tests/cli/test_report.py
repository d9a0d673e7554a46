"""``memfit report``, as a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.report_runs import training

from memfit.cli import main
from memfit.ledger import RunInfo
from memfit.testing import ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    training().save(tmp_path / "run.memfit")
    return tmp_path / "run.memfit"


def test_it_writes_one_page(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "page.html"
    assert main(["report", str(path), "-o", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>run.memfit – memfit</title>" in page
    assert "It fits on A100-40GB" in page
    assert capsys.readouterr().out.startswith(f"{out}: ")


def test_by_default_it_is_called_report(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(path)]) == 0
    assert (tmp_path / "report.html").exists()


def test_the_gpu_can_be_chosen(path: Path, tmp_path: Path):
    out = tmp_path / "page.html"
    assert main(["report", str(path), "-o", str(out), "--gpu", "h200"]) == 0
    assert "It fits on H200" in out.read_text(encoding="utf-8")


def test_ranks_share_a_page(tmp_path: Path):
    paths = [tmp_path / f"{rank}.memfit" for rank in range(8)]
    for rank, path in enumerate(paths):
        replace(training(), info=RunInfo(rank=rank, world_size=8, versions={"torch": "2.11"})).save(path)
    out = tmp_path / "page.html"
    assert main(["report", *map(str, paths), "-o", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("<article") == 8
    assert all(f'aria-label="rank {rank}"' in page for rank in range(8))


def test_files_of_one_name_are_told_apart(path: Path, tmp_path: Path):
    (tmp_path / "other").mkdir()
    training().save(tmp_path / "other" / "run.memfit")
    out = tmp_path / "page.html"
    assert main(["report", str(path), str(tmp_path / "other" / "run.memfit"), "-o", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert f'aria-label="{path}"' in page
    assert f'aria-label="{tmp_path / "other" / "run.memfit"}"' in page


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--gpu", "abacus"], "unknown GPU 'abacus'"),
        (["--out", "nowhere/page.html"], "cannot write nowhere/page.html (No such file or directory): name another file"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(argv: list[str], complaint: str, path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(path), *argv]) == 2
    assert complaint in capsys.readouterr().err


def test_a_ledger_of_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger("step").save(tmp_path / "empty.memfit")
    assert main(["report", str(tmp_path / "empty.memfit"), "-o", str(tmp_path / "page.html")]) == 2
    assert "empty has no memory in it" in capsys.readouterr().err


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "notes.txt").write_text("hello")
    assert main(["report", str(tmp_path / "notes.txt")]) == 2
    assert "notes.txt" in capsys.readouterr().err
