"""Where a dry run writes: gone afterwards, also after a run that was killed, but never while somebody uses it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from memfit.overlay.store import temporary_store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_gone_with_everything_in_it(folder: Path):
    with temporary_store() as store:
        inner = Path(store, "inner")
        inner.mkdir()
        (inner / "file").touch()
        inner.chmod(0)
    assert list(folder.iterdir()) == []


def test_what_a_killed_run_has_left_is_removed_and_what_is_in_use_is_not(folder: Path):
    left_over = folder / "memfit-dry-run-killed"
    left_over.mkdir()
    (left_over / "lock").touch()
    other = folder / "memfit-dry-run-without-a-lock"
    other.mkdir()
    with temporary_store() as first, temporary_store() as second:
        assert Path(first).is_dir()
        assert Path(second).is_dir()
        assert not left_over.exists()
        assert other.is_dir()
