"""Where a dry run writes: gone afterwards, also after a run that was killed, but never while somebody uses it."""

from __future__ import annotations

import errno
import os
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
    (left_over / "inner").mkdir(parents=True)
    with temporary_store() as first, temporary_store() as second:
        assert Path(first).is_dir()
        assert Path(second).is_dir()
        assert not left_over.exists()


def test_links_and_folders_of_other_users_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    victim = folder / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "inner").chmod(0o755)
    (folder / "memfit-dry-run-link").symlink_to(victim)
    with temporary_store():
        pass
    assert (victim / "inner").stat().st_mode & 0o777 == 0o755

    (folder / "memfit-dry-run-of-another").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with temporary_store():
        pass
    assert (folder / "memfit-dry-run-of-another").is_dir()


def test_a_link_that_a_run_has_left_is_not_followed(folder: Path):
    outside = folder / "outside"
    outside.mkdir(mode=0o755)
    with temporary_store() as store:
        Path(store, "link").symlink_to(outside)
    assert outside.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    import fcntl

    locks = []

    def late(number: int, operation: int) -> None:
        if not locks:  # somebody else has cleaned up in between
            [made] = folder.iterdir()
            made.rmdir()
        locks.append(operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with temporary_store() as store:
        assert Path(store).is_dir()
    assert len(locks) == 2


def test_a_file_system_without_locks_is_no_obstacle(folder: Path, monkeypatch: pytest.MonkeyPatch):
    import fcntl

    def refused(number: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    (folder / "memfit-dry-run-of-another").mkdir()
    with temporary_store() as store:
        assert Path(store).is_dir()
    assert [path.name for path in folder.iterdir()] == ["memfit-dry-run-of-another"]
