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


@contextmanager
def temporary_store() -> Iterator[str]:
    """Held by a lock, so that what a killed run has left can be told from what another run is using."""
    _remove_left_over()
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    held = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(held)


def _remove_left_over() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            held = os.open(folder / "lock", os.O_RDWR)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(str(folder))
            finally:
                os.close(held)


def _remove(folder: str) -> None:
    """Also directories that the run has made unreadable."""
    for place, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(place, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
