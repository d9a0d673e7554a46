"""What a file from a stranger may cost, decided before it is read.

::

    path ──> a regular file? ──> small enough? ──> bytes ──> its reader, with what memory it may take and how deep it may go
                  │ FIFO, device      │ MEMFIT_MAX_FILE                         │ MEMFIT_MAX_MEMORY
                  └───────────────────┴──────────────> RefusedFileError <───────┘

Every reader of memfit takes its bytes from here and asks here what it may spend. Time follows from these: no reader does more than
a bounded amount of work a byte. Both limits are for files that were not meant; where a file really is larger, raise them
with the variable that the refusal names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from memfit.errors import ConfigError
from memfit.units import GIB, format_bytes, parse_bytes

FILE_LIMIT: Final = "MEMFIT_MAX_FILE"
MEMORY_LIMIT: Final = "MEMFIT_MAX_MEMORY"
_DEFAULTS: Final = {FILE_LIMIT: GIB, MEMORY_LIMIT: 2 * GIB}

MAX_DEVICES: Final = 256
"""Devices of one run: what is counted, is counted for each of them."""
MAX_DEPTH: Final = 500
"""Modules in modules: each is shown with all that are above it."""

_CHECK_PATH: Final = "Check the path and its permissions"


class RefusedFileError(ValueError):
    """A file that is not read, or not to its end; readers say so in their own error."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice


def limit(name: str) -> int:
    """What the environment allows, in bytes, or what is allowed without it."""
    text = os.environ.get(name, "")
    if not text:
        return _DEFAULTS[name]
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def read_regular(path: Path) -> bytes:
    """All of a file. What is no regular file, or is too large, is refused unread: a FIFO is not even opened."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit(FILE_LIMIT):
            raise RefusedFileError(
                f"is {format_bytes(size)}, more than the {format_bytes(limit(FILE_LIMIT))} that memfit reads of a file",
                f"If it is what you mean to read, set {FILE_LIMIT}={_rounded_up(size)}",
            )
        return _read(file, size)


def read_start(path: Path, num_bytes: int) -> bytes:
    """The first bytes of a regular file, however large it is: enough to tell what it is."""
    with _opened(path) as file:
        return _read(file, num_bytes)


def demand_memory(size_bytes: int, what: str = "reading it") -> None:
    """Refuses what would take more memory than a file is worth."""
    if size_bytes > limit(MEMORY_LIMIT):
        raise RefusedFileError(
            f"is too large: {what} would take about {format_bytes(size_bytes)} of memory, "
            f"more than the {format_bytes(limit(MEMORY_LIMIT))} that memfit takes",
            f"If it is what you mean to read, set {MEMORY_LIMIT}={_rounded_up(size_bytes)}",
        )


def _opened(path: Path) -> BinaryIO:
    try:
        # Looked at before it is opened: opening a device can do something. Looked at again after: it may have been replaced.
        _demand_regular(os.stat(path).st_mode)
        file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
        try:
            _demand_regular(os.fstat(file.fileno()).st_mode)
        except RefusedFileError:
            file.close()
            raise
    except OSError as error:
        raise _unreadable(error) from error
    except RefusedFileError:
        raise
    except ValueError as error:  # a path with a null in it
        raise RefusedFileError(f"cannot be read ({error})", _CHECK_PATH) from error
    return file


def _demand_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise RefusedFileError(f"cannot be read ({os.strerror(errno.EISDIR)})", _CHECK_PATH)
    if not stat.S_ISREG(mode):
        raise RefusedFileError("cannot be read (it is a pipe or a device)", "Write what it gives to a file, and pass that")


def _read(file: BinaryIO, size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        raise _unreadable(error) from error
    except MemoryError as error:
        raise RefusedFileError("is larger than this machine's memory", "Use a machine with more") from error


def _unreadable(error: OSError) -> RefusedFileError:
    return RefusedFileError(f"cannot be read ({error.strerror})", _CHECK_PATH)


def _rounded_up(size_bytes: int) -> str:
    return f"{-(-size_bytes // GIB)}GiB"


def hash_file(path: Path) -> str:
    """SHA-256 of a regular file."""
    return hashlib.sha256(read_regular(path)).hexdigest()
