"""Where golden ledgers lie, and whether they are to be written: pytest's word where it runs, otherwise the environment's."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

UPDATE_VARIABLE = "MEMFIT_UPDATE"


@dataclass(frozen=True)
class GuardSession:
    """How golden ledgers are treated."""

    update: bool
    """Write them instead of comparing with them."""
    root: Path
    """What relative paths are relative to."""
    how_to_update: str
    """What a user would type."""
    written: list[Path] = field(default_factory=list)


_SESSIONS: list[GuardSession] = []


def current_session() -> GuardSession:
    """The innermost session that began, or one for code that runs on its own."""
    if _SESSIONS:
        return _SESSIONS[-1]
    return GuardSession(asked_by_environment(), Path.cwd(), f"run this again with {UPDATE_VARIABLE}=1 in the environment")


def asked_by_environment() -> bool:
    return os.environ.get(UPDATE_VARIABLE, "") not in ("", "0")


def begin_session(session: GuardSession) -> None:
    _SESSIONS.append(session)


def end_session() -> None:
    _SESSIONS.pop()
