"""Replacing parts of torch for a while, and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Replacements:
    """What was replaced, undone in reverse order. Undoing never stops half-way."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Sets ``owner.name``; an attribute that was inherited or absent is removed again."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self._undo.append(lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before))

    def item(self, owner: Any, key: Any, value: Any) -> None:
        """Sets ``owner[key]``."""
        before = owner.get(key, _MISSING)
        owner[key] = value
        self._undo.append(lambda: owner.pop(key) if before is _MISSING else owner.__setitem__(key, before))

    def member(self, owner: list[Any], value: Any) -> None:
        """Appends to a list."""
        owner.append(value)
        self._undo.append(lambda: owner.remove(value))

    def finally_call(self, action: Callable[[], Any]) -> None:
        """Something else to undo."""
        self._undo.append(action)

    def undo(self) -> None:
        error: BaseException | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as problem:
                error = error or problem
        if error is not None:
            raise error
