"""Whether a file can be written, asked before the work whose result it is to hold."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from memfit.errors import ConfigError
from memfit.ledger.storage import write_whole


def check_output(path: Path, flag: str, *, may_be_stream: bool = False) -> None:
    """Refuses a file that could not be written in the end; ``flag`` is where another can be named.

    Found out by writing: a file of another name appears beside it, and is gone again. What is there already stays as it is.
    """
    try:
        if path.is_dir():
            raise ConfigError(f"cannot write {path} (it is a directory): name another file with {flag}")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            if may_be_stream:
                return  # a terminal or a pipe: nothing can be tried there without being seen
            raise ConfigError(f"cannot write {path} (it is a pipe or a device, and would be replaced): name a file with {flag}")
        if path.exists() and not os.access(path, os.W_OK):
            raise ConfigError(f"cannot write {path} (Permission denied): name another file with {flag}")
        handle, tried = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        Path(tried).unlink()
    except OSError as error:
        raise cannot_write(path, error, flag) from error
    except ValueError as error:  # a name with a null in it
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot write {str(path)!r} ({error}): name another file with {flag}") from error


def write_output(path: Path, data: bytes, flag: str) -> None:
    """Whole or not at all: a disk that is full leaves what was there."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_whole(path, data)
    except OSError as error:
        raise cannot_write(path, error, flag) from error


def cannot_write(path: Path, error: OSError, flag: str) -> ConfigError:
    return ConfigError(f"cannot write {path} ({error.strerror}): name another file with {flag}")
