"""What ``MEMFIT`` in the environment says: ``MEMFIT="run.memfit every=500 against=predicted.memfit"``."""

from __future__ import annotations

import glob
import itertools
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

from memfit.errors import ConfigError

VARIABLE: Final = "MEMFIT"


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How a run is watched. Numbers that are not given are those of ``memfit.Retention``."""

    save_to: Path = Path("run.memfit")
    """Where the ledger is written; with several ranks, each writes to a file of its own."""
    first: int | None = None
    every: int | None = None
    around_peaks: int | None = None
    against: Path | None = None
    """A predicted ledger to compare with while the run lasts."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text in the environment: a file, then ``name=value`` for what is to be different."""
        words = shlex.split(text)
        kinds = {field.name: str(field.type) for field in fields(cls)}
        found: dict[str, Path | int] = {}
        for word in words:
            name, sign, value = word.partition("=")
            if not sign:
                name, value = "save_to", word
            if name not in kinds or name in found:
                raise ConfigError(f"cannot read {VARIABLE}={text!r}: write a file name, then any of {', '.join(sorted(kinds))}=...")
            found[name] = Path(value) if "Path" in kinds[name] else _number(name, value)
        settings = cls(**found)  # type: ignore[arg-type]
        if settings.save_to.is_dir():
            raise ConfigError(f"{VARIABLE} names {settings.save_to}, a folder: write a file name, as in {VARIABLE}=run.memfit")
        return settings

    def to_text(self) -> str:
        """What ``parse`` reads."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "save_to"}
        words = [str(self.save_to), *(f"{name}={value}" for name, value in given.items() if value is not None)]
        return shlex.join(words)

    def retention_numbers(self) -> dict[str, int]:
        numbers = {"first": self.first, "every": self.every, "around_peaks": self.around_peaks}
        return {name: value for name, value in numbers.items() if value is not None}


def _number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigError(f"{name} must be a number of steps, not {value!r}")
    return int(value)


def unused_name(path: Path, is_used: Callable[[Path], bool]) -> Path:
    """The path, or the first of ``run-2.memfit``, ``run-3.memfit``, ... that is not used yet."""
    names = (path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not is_used(name))


def files_of_run(path: Path) -> list[Path]:
    """What a watched run has written: the file itself, or those of its ranks, restarts and processes (``run.rank3.memfit``)."""
    stem = glob.escape(path.stem).replace("{rank}", "*")
    return sorted(found for pattern in (f"{stem}{path.suffix}", f"{stem}.*{path.suffix}") for found in path.parent.glob(pattern))
