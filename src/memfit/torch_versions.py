"""Versions of torch as people and torch write them: ``2.11``, ``2.11.0+cu130``, ``2.13.0a0+git1a2b3c``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from memfit.errors import ConfigError

_VERSION: Final = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)(?:[.a-z][^+]*)?(?:\+(?P<build>.*))?")


@dataclass(frozen=True)
class TorchVersion:
    """A release of torch, and the build of it."""

    release: tuple[int, int]
    build: str = ""
    """What is after ``+``: ``cu130``, ``cpu``; empty where nothing is."""

    @classmethod
    def parse(cls, text: str) -> TorchVersion:
        """Reads ``2.11.0+cu130``. Raises ``ConfigError`` for what is no version."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise ConfigError(f"cannot read {text!r} as a version of torch: write it like 2.11 or 2.11.0+cu130")
        return cls((int(match["major"]), int(match["minor"])), match["build"] or "")

    def __str__(self) -> str:
        return f"{self.release[0]}.{self.release[1]}"
