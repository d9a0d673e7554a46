"""Inside of a program that may be watched: until it imports torch, as little as can be.

Every Python that a job starts comes through here, launchers, data loaders and helpers too. So this imports nothing but what Python
has loaded by itself, and nothing of memfit beside it: ``recording.py`` and all the rest come with torch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # without typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_begun: list[int] = []
"""The process that is watched: two ways lead here."""


def begin() -> None:
    """As soon as this program imports torch: watches it where ``MEMFIT`` is in the environment, and applies the plan that
    ``MEMFIT_PLAN`` names."""
    if os.getpid() not in _begun:
        _begun[:] = [os.getpid()]
        after_import("torch", _act)


def _act() -> None:
    if os.environ.get("MEMFIT_PLAN"):
        _plan(os.environ["MEMFIT_PLAN"])
    if os.environ.get("MEMFIT"):
        _watch()


def _plan(path: str) -> None:
    """What is wrong with the plan ends the program: without it, it would run out of memory."""
    from memfit.errors import MemfitError
    from memfit.plan.applying.programs import apply_in_this_program

    try:
        apply_in_this_program(path)
    except (MemfitError, OSError) as error:
        raise SystemExit(f"memfit: error: {error}") from None


def _watch() -> None:
    try:
        from memfit.watch.recording import watch_this_program

        watch_this_program()
    except Exception as error:
        print(f"memfit: not watching: {error}", file=sys.stderr, flush=True)


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls ``action`` when a module has been imported; at once if it has been."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Waiting(name, action))


class _Waiting:
    """A finder that lets others find the module, and acts when it has run."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Telling(spec.loader, self._action)  # type: ignore[assignment]
        return spec


class _Telling:
    """A module's own loader, and something to do afterwards."""

    def __init__(self, loader: Any, action: Callable[[], None]) -> None:
        self._loader, self._action = loader, action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()
