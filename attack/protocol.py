"""What an attack is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import ClassVar


class Fell(Exception):
    """A promise was not kept."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one case did."""

    files: int = 0
    """Damaged files that were read."""
    commands: int = 0
    refused: int = 0
    """Of these, how many were refused in a line."""
    errors: int = 0
    """Exceptions that were raised inside memfit."""

    def __add__(self, other: Tried) -> Tried:
        return Tried(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a case may take."""

    cpu_seconds: float = 5.0
    """Not on the clock: the machine may be busy."""
    wall_seconds: float = 60.0
    """For what waits and computes nothing."""
    memory_bytes: int = 2 * 2**30


class Attack(ABC):
    """One way to make memfit fall over."""

    name: ClassVar[str]
    promise: ClassVar[str]
    """What holds if nothing falls, in a few words."""
    share: ClassVar[float] = 1.0
    """Of the time."""
    limits: ClassVar[Limits] = Limits()
    runs_programs: ClassVar[bool] = False
    """Its cases start programs and write files themselves; elsewhere that is a fall."""

    def prepare(self, folder: Path) -> None:  # noqa: B027
        """Called once in each process, before the first case; memory and time are not yet limited."""

    @abstractmethod
    def attempt(self, chance: Random, folder: Path) -> Tried:
        """One case; all that is random comes from ``chance``. Raises ``Fell``, or anything else, where a promise was not kept."""
