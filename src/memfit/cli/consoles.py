"""Where commands print: results on stdout, signs of life on stderr."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from memfit.views.escaping import printable

PIPE_WIDTH: Final = 120
"""Of lines that go into a pipe or a file."""


def stdout_console() -> Console:
    """As wide as the terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def working(words: str) -> Status:
    """A sign of life for people who watch, while something takes long."""
    return Console(stderr=True, quiet=not sys.stderr.isatty()).status(Text(printable(words)))
