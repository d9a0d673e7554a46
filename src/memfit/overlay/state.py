"""Who keeps files apart from what this process writes, and what that promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """A way to keep files as they are."""

    before: str
    """Said before a script starts: what is held back, and what is not."""
    after: str = ""
    """Said in the verdict."""


BY_SYSTEM: Final = Keeper(
    before="dry run: what the script writes is thrown away; the network and devices are not held back",
    after="no file was changed: the operating system kept apart what the script wrote, and it is gone; the network and devices "
    "were not held back",
)
BY_FENCE: Final = Keeper(
    before="dry run: what Python writes is thrown away, and what other programs and C libraries write is refused; the network, "
    "devices and /dev/shm are not held back",
    after="no file was changed: Python kept apart what the script wrote, and it is gone; the operating system refused what other "
    "programs and C libraries would have written; the network, devices and /dev/shm were not held back",
)
BY_PYTHON: Final = Keeper(
    before="NOT PROTECTED (--unprotected): C libraries, and other programs that the script starts, can change files; the network "
    "is not held back either",
    after="files may have been changed (--unprotected): Python kept apart what the script wrote, but programs that it started, and "
    "libraries that write by themselves in C or C++, were not held back",
)
BY_NOBODY: Final = Keeper(
    before="NOT PROTECTED (--unprotected): the script changes files as in a real run",
)
"""On Windows."""

_in_force: list[Keeper] = []


def in_force() -> Keeper | None:
    """Who keeps files apart; ``None`` if files are written as in any program."""
    return _in_force[-1] if _in_force else None


@contextmanager
def declared(keeper: Keeper) -> Iterator[None]:
    _in_force.append(keeper)
    try:
        yield
    finally:
        _in_force.remove(keeper)
