"""Where commands print and write: results on stdout, signs of life on stderr, and files that are known to be writable before the
work whose result they are to hold."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO, cast

from rich.console import Console
from rich.status import Status
from rich.text import Text

from memfit.errors import ConfigError, RanOutError
from memfit.ledger import Ledger
from memfit.ledger.storage import write_whole
from memfit.views.escaping import printable

PIPE_WIDTH: Final = 120
"""Of lines that go into a pipe or a file."""


_BLANKS: Final = re.compile(r" +$", re.MULTILINE)

SELDOM_SECONDS: Final = 10.0
"""Between lines about progress in the log of a job."""

RUN: Final = Path("run.memfit")
"""The ledger that commands write, and read where none is named."""

STDOUT: Final = Path("-")
"""As the name of a file: the standard output."""


def told_to(*outs: Path | None) -> TextIO:
    """Where people read the answer: the standard output, or the standard error where one of the files that a command writes
    (``outs``) is the standard output."""
    return sys.stderr if STDOUT in outs else sys.stdout


def stdout_console(*outs: Path | None) -> Console:
    """As wide as the terminal, or as ``COLUMNS`` says; on what ``told_to`` says."""
    stream = told_to(*outs)
    if stream.isatty():
        return Console(stderr=stream is sys.stderr)
    known = os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if known else PIPE_WIDTH, file=cast(TextIO, _Trimmed(stream)))


class _Trimmed:
    """A stream whose lines lose the blanks with which tables fill them up."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_BLANKS.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def working(words: str) -> Status:
    """A sign of life for people who watch, while something takes long."""
    return Console(stderr=True, quiet=not _is_watched()).status(Text(printable(words)))


def _is_watched() -> bool:
    return sys.stderr.isatty()


def telling_lines() -> Callable[[str], None]:
    """Whole lines on the standard error: what a script prints meanwhile stays readable. Where nobody watches, only now and then."""
    told = time.monotonic()

    def tell(line: str) -> None:
        nonlocal told
        if _is_watched() or time.monotonic() - told >= SELDOM_SECONDS:
            told = time.monotonic()
            print(f"memfit: {printable(line)}", file=sys.stderr, flush=True)

    return tell


def tell_ran_out(error: RanOutError) -> None:
    """The script is run a second time: its output comes twice, and says why."""
    print(
        f"memfit: {printable(str(error))}\nmemfit: once more without a limit, to see how much it needs", file=sys.stderr, flush=True
    )


@contextlib.contextmanager
def stdout_kept_clean(*, wanted: bool) -> Iterator[None]:
    """What the user's code prints in the block, its C++ and its child processes included, goes to stderr."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    try:
        stdout, stderr = sys.stdout.fileno(), sys.stderr.fileno()
    except OSError:  # a notebook's or a test's: there is no file behind it
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    kept = os.dup(stdout)
    os.dup2(stderr, stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, stdout)
        os.close(kept)


# -- files -------------------------------------------------------------------------------------------------------------------------


def check_output(path: Path, flag: str, *, may_be_stream: bool = False) -> None:
    """Refuses a file that could not be written in the end; ``flag`` is where another can be named.

    Found out by writing: a file of another name appears beside it, and is gone again. What is there already stays as it is.
    """
    if path == STDOUT:
        return
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
        if path == STDOUT:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_whole(path, data)
    except OSError as error:
        raise cannot_write(path, error, flag) from error


def write_report(path: Path | None, page: Callable[[], str]) -> None:
    """Writes the page of ``--report``, if one was asked for, and says so."""
    if path is not None:
        write_output(path, page().encode(), "--report")
        if path != STDOUT:
            print(f"memfit: {printable(str(path))} is written: open it in a browser", file=sys.stderr)


def write_ledger(path: Path, ledger: Ledger) -> None:
    """To a file, or to the standard output."""
    try:
        if path != STDOUT:
            ledger.save(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            ledger.save(kept := Path(folder, "run.memfit"))
            write_output(path, kept.read_bytes(), "--out")
    except OSError as error:
        raise cannot_write(path, error, "--out") from error


def cannot_write(path: Path, error: OSError, flag: str) -> ConfigError:
    return ConfigError(f"cannot write {path} ({error.strerror}): name another file with {flag}")
