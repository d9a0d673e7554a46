"""``memfit export``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.export_runs import RUN

from memfit.analysis import build_report
from memfit.cli import main
from memfit.views.exports import EXPORTS

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch was imported")

sys.meta_path.insert(0, NoTorch())
from memfit.cli import main
sys.exit(max(main(["export", sys.argv[1], "--to", kind]) for kind in sys.argv[2:]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.memfit"
    RUN.save(path)
    return path


@pytest.mark.parametrize("kind", EXPORTS)
def test_it_writes_what_the_format_says(kind: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert main(["export", str(path), "--to", kind, "-o", str(out)]) == 0
    assert out.read_bytes() == EXPORTS[kind].write(RUN)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{out} (")
    assert EXPORTS[kind].use in printed


def test_the_name_follows_from_the_ledger(path: Path):
    assert main(["export", str(path), "--to", "perfetto"]) == 0
    assert (path.parent / "run.trace.json").exists()
    assert len({export.suffix for export in EXPORTS.values()}) == len(EXPORTS)


def test_json_is_the_report(path: Path):
    assert main(["export", str(path), "--to", "json"]) == 0
    assert json.loads((path.parent / "run.report.json").read_text()) == json.loads(json.dumps(build_report(RUN).to_json()))


def test_all_of_it_without_torch(path: Path):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(path), *EXPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_ledger_is_never_overwritten(path: Path, capsys: pytest.CaptureFixture[str]):
    before = path.read_bytes()
    assert main(["export", str(path), "--to", "csv", "-o", str(path)]) == 2
    assert path.read_bytes() == before
    assert "is the ledger itself" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["missing/out", "."])
def test_a_place_that_cannot_be_written_is_told(out: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(path), "--to", "csv", "-o", str(tmp_path / out)]) == 2
    assert "name another file with --out" in capsys.readouterr().err


def test_a_file_that_is_no_ledger_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(tmp_path / "nothing"), "--to", "csv"]) == 2
    assert capsys.readouterr().err.startswith("memfit: error: ")
