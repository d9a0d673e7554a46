"""Where commands print: results on stdout, signs of life on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from memfit.errors import RanOutError
from memfit.views.escaping import printable

PIPE_WIDTH: Final = 120
"""Of lines that go into a pipe or a file."""


def stdout_console() -> Console:
    """As wide as the terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def working(words: str) -> Status:
    """A sign of life for people who watch, while something takes long."""
    return Console(stderr=True, quiet=not _is_watched()).status(Text(printable(words)))


def _is_watched() -> bool:
    return sys.stderr.isatty()


def tell_progress(line: str) -> None:
    """A whole line on the terminal, for people who watch: what a script prints meanwhile stays readable."""
    if _is_watched():
        print(f"memfit: {printable(line)}", file=sys.stderr, flush=True)


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
