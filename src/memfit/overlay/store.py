"""A place for what a dry run writes: a folder among the temporary files that is removed when the run is over."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows, where there is no overlay
    fcntl = None  # type: ignore[assignment]

_PREFIX: Final = "memfit-dry-run-"
_FOLDER_ITSELF: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def temporary_store() -> Iterator[str]:
    """Held by a lock on the folder itself, so that what a killed run has left can be told from what another run is using."""
    _remove_left_over()
    folder, held = _make()
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(held)


def _make() -> tuple[str, int]:
    """Makes a new folder and locks it. Tries again if another process has cleaned the folder up before it was locked."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with suppress(FileNotFoundError):
            held = os.open(folder, _FOLDER_ITSELF)
            with suppress(OSError):  # a file system without locks: there no process cleans up
                fcntl.flock(held, fcntl.LOCK_EX)
            if _is_the_same(folder, held):
                return folder, held
            os.close(held)


def _remove_left_over() -> None:
    """Only folders of this user's, never through links: other users write to the same directory."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            held = os.open(path, _FOLDER_ITSELF)
            try:
                if os.fstat(held).st_uid == os.geteuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if _is_the_same(str(path), held):
                        _remove(str(path))
            finally:
                os.close(held)


def _is_the_same(path: str, number: int) -> bool:
    """Does the path still lead to the folder that was opened?"""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(number))
    except FileNotFoundError:
        return False


def _remove(folder: str) -> None:
    """Also directories that the run has made unreadable."""
    for place, folders, _ in os.walk(folder):
        for inner in (os.path.join(place, name) for name in folders):
            if not os.path.islink(inner):
                with suppress(OSError):
                    os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
