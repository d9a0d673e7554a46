"""Signs of life while a command works: a bar with an estimate on a terminal; elsewhere a line for each part that is finished."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from memfit.views.escaping import printable

QUIET_SECONDS: Final = 3.0
"""What is over by then needs no line."""

_WIDE_ENOUGH: Final = 80
"""Columns of a terminal in which there is room for a bar beside words and times."""
_MOST_COLUMNS: Final = 100
"""Of a line of progress, so that its times stand near its words."""

Tell = Callable[[int, int | None, str], None]
"""``tell(parts that are done, parts in all if that is known, what there is to say)``."""


@contextmanager
def telling(what: str) -> Iterator[Tell]:
    """``what`` is being done; the block says how far it is."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[said]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        *([BarColumn(bar_width=20)] if console.width >= _WIDE_ENOUGH else []),
        TimeElapsedColumn(table_column=_of_a_time()),
        TimeRemainingColumn(table_column=_of_a_time()),
    )
    console.width = min(console.width, _MOST_COLUMNS)
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=None, said=what)

        def tell(done: int, total: int | None, said: str) -> None:
            counted = f"{done} of {total}" if total else f"{done}"
            bar.update(task, completed=done, total=total, said=f"{what}: {counted}{f', {said}' if said else ''}")

        yield tell


def _of_a_time() -> Column:
    return Column(min_width=len("0:00:00"), no_wrap=True)


class _Lines:
    """``memfit: 3 of 12 (41 s, about 120 s left): ...`` on the standard error."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, done: int, total: int | None, said: str) -> None:
        spent = time.monotonic() - self._start
        if spent < QUIET_SECONDS or not done:
            return
        left = f", about {spent * (total - done) / done:.0f} s left" if total and done < total else ""
        counted = f"{done} of {total}" if total else f"{done}"
        print(f"memfit: {counted} ({spent:.0f} s{left}): {printable(said)}", file=sys.stderr, flush=True)
