"""Which overlay holds back what this process writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

BY_SYSTEM: Final = "no file was changed: the operating system kept apart what the script wrote, and it is gone"
BY_PYTHON: Final = (
    "no file was changed: Python kept apart what the script wrote, and it is gone; programs that the script started, and libraries "
    "that write by themselves in C or C++, are not held back"
)

_in_force: list[str] = []


def in_force() -> str:
    """A sentence that says who keeps files apart; empty if files are written as ever."""
    return _in_force[-1] if _in_force else ""


@contextmanager
def declared(sentence: str) -> Iterator[None]:
    _in_force.append(sentence)
    try:
        yield
    finally:
        _in_force.remove(sentence)
