"""The file of a run that has not ended: whatever happens to the process, it holds what was flushed."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from memfit.ledger.run_info import RunInfo
from memfit.ledger.schema import Table
from memfit.ledger.storage import MAGIC, frame, is_being_written, write_whole

try:
    import fcntl
except ImportError:  # Windows: two processes that write to one file are noticed when the second has replaced it
    fcntl = None  # type: ignore[assignment]


class Journal:
    """A file that is a readable ledger from the moment it appears, and after every ``append``."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._end_writing: Callable[[], Any] = lambda: None
        if is_being_written(self.path):
            raise BlockingIOError(errno.EAGAIN, "another recording is writing to it")
        self.replace({}, {"strings": [], "devices": [], "info": RunInfo().to_json()})

    def replace(self, tables: dict[str, Table], words: dict[str, Any]) -> None:
        """Begins anew with this as all that there is: a crash leaves the file as it was, or as it is now to be."""
        write_whole(self.path, MAGIC + frame(tables, words))
        # Without a buffer: the child of a fork has nothing left to write when it ends.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        self._end_writing()
        self._file, self._end_writing = file, weakref.finalize(self, os.close, file)
        _mark_as_being_written(self._file)

    def close(self) -> None:
        """Ends the writing. Also happens when the journal is garbage-collected."""
        self._end_writing()

    def append(self, tables: dict[str, Table], words: dict[str, Any]) -> None:
        if not os.path.samestat(os.fstat(self._file), self.path.stat()):
            raise OSError(f"another process has replaced {self.path}; give every process a file of its own")
        rest = memoryview(frame(tables, words))
        while rest:
            rest = rest[os.write(self._file, rest) :]


def path_of_rank(path: Path | str, rank: int, world_size: int) -> Path:
    """Where one of several processes writes: for rank 3, ``run.memfit`` is ``run.rank3.memfit``, and ``{rank}`` is ``3``."""
    path = Path(path)
    if "{rank}" in path.name:
        return path.with_name(path.name.replace("{rank}", str(rank)))
    return path if world_size == 1 else path.with_suffix(f".rank{rank}{path.suffix}")


def _mark_as_being_written(file: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
