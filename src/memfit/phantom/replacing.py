"""Replacing parts of torch for a while, and putting back exactly what was there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
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

    def when_imported(self, name: str, action: Callable[[Any], None]) -> None:
        """Does something with a module: now, if somebody has imported it, or as soon as somebody does."""
        if name in sys.modules:
            action(sys.modules[name])
            return
        watcher = _Watcher(name, action)
        sys.meta_path.insert(0, watcher)
        self._undo.append(lambda: sys.meta_path.remove(watcher))

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


class _Watcher:
    """Sees one module being imported, which is otherwise done as ever."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self._name, self._action = name, action
        self._is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
