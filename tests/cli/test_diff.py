"""``memfit diff``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memfit.cli import main
from memfit.testing import ledger
from memfit.units import MIB


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = []
    for name, size in (("before", 40), ("after", 42)):
        ledger(f"step; alloc {size}MiB x on cuda:0").save(tmp_path / f"{name}.memfit")
        found.append(str(tmp_path / f"{name}.memfit"))
    return found


def test_it_prints_the_diff(paths: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["diff", *paths]) == 0
    printed = capsys.readouterr()
    assert "".join(printed.out.split()).startswith(f"{paths[0]}->{paths[1]}")
    assert "The peak grew by 2.00 MiB (+5.00%)." in printed.out
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_json_is_one_object(paths: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["diff", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == paths
    assert [figure["change_bytes"] for figure in found["figures"]] == [2 * MIB] * 3


@pytest.mark.parametrize(
    ("allowed", "status"), [("5%", 0), ("4.9%", 1), ("2MiB", 0), ("1MiB", 1), ("0", 1), ("0%", 1), ("80GB", 0)]
)
def test_fail_over(allowed: str, status: int, paths: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["diff", *paths, "--fail-over", allowed]) == status
    told = capsys.readouterr().err.splitlines()
    assert told == [f"memfit: {what} grew by 2.00 MiB, which is over {allowed}" for what in ("allocated", "reserved") if status]
    assert main(["diff", *reversed(paths), "--fail-over", allowed]) == 0, "less memory is always fine"


@pytest.mark.parametrize("amount", ["lots", "-1%", "2 percent", "", "%"])
def test_an_amount_that_cannot_be_meant(amount: str, paths: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["diff", *paths, f"--fail-over={amount}"]) == 2
    assert "write it like 2% or 500MiB" in capsys.readouterr().err


def test_a_file_that_is_no_ledger(paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["diff", paths[0], str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("memfit: error: ")


def test_a_page_on_the_standard_output_is_all_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "run.memfit"
    ledger("step; alloc 1MiB x; step").save(path)
    assert main(["diff", str(path), str(path), "--report", "-"]) == 0
    page, told = capsys.readouterr()
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "run.memfit" in told
