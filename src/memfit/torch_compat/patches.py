"""Replacing parts of torch and of other packages for a while.

::

    Patches("the recorder").wrap(nn.Module, "__call__", make)        several may patch one place:
                                                                     torch.cuda.empty_cache
    place ── the original                                              └─ torch's own
          └─ layers, oldest first: who, why, what                      └─ the phantom GPU: does nothing
                                                                       └─ the recorder: writes an event, then calls the one below

A place is an attribute of an object or an item of a dict. Each keeps the original and the layers on it; taking a layer away builds
the place anew from those that remain, so that it does not matter who leaves first. ``active_patches`` lists them. ``set_aside``
shows what is below all layers for a while, to those who must see torch as it is.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any

import torch

_MISSING = object()
Make = Callable[[Any], Any]
"""Returns the value for a place, given the value below it."""


@dataclass(frozen=True)
class Patch:
    """One active replacement."""

    place: str
    who: str
    why: str
    was_there: bool = True
    """True if there was something to replace; otherwise torch lacks the name, or has moved it."""


class Patches:
    """One owner's replacements and clean-up functions. ``undo`` never stops half-way."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._why = ""
        self._undo: list[Callable[[], Any]] = []
        self._libraries: dict[tuple[str, str], torch.library.Library] = {}

    def because(self, why: str) -> Patches:
        """Sets the reason for the following replacements; returns the same object."""
        self._why = why
        return self

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Sets ``owner.name``; an attribute that was inherited or absent is removed again."""
        self._lay(_Attribute(owner, name), lambda below: value)

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts ``make(what is there)`` in the place of ``owner.name``, under the name and with the text of what is there."""
        self._lay(_Attribute(owner, name), lambda below: functools.wraps(below)(make(below)))

    def replace_item(self, owner: Any, key: Any, value: Any) -> None:
        """Sets ``owner[key]``."""
        self._lay(_EntryPlace(owner, key), lambda below: value)

    def append(self, owner: list[Any], value: Any) -> None:
        """Appends to a list."""
        owner.append(value)
        self._undo.append(lambda: owner.remove(value))

    def implement(self, key: str, operator: str, kernel: Callable[..., Any], *, with_keyset: bool = False) -> None:
        """Gives an operator a kernel for a dispatch key: ``mm`` of ATen, or ``mylib::mm`` of a library.

        ``with_keyset`` hands it the dispatch keys of the call first.
        """
        namespace, _, name = operator.rpartition("::")
        place = (namespace or "aten", key)
        if place not in self._libraries:
            library = self._libraries[place] = torch.library.Library(place[0], "IMPL", key)
            self._undo.append(lambda: (self._libraries.pop(place), library._destroy()))
        self._libraries[place].impl(name, kernel, with_keyset=with_keyset)
        entry = Patch(f"{place[0]}::{name} for {key}", self.who, self._why)
        _kernels[id(entry)] = entry
        self._undo.append(lambda: _kernels.pop(id(entry)))

    def when_imported(self, name: str, action: Callable[[Any], None]) -> None:
        """Calls ``action`` with a module: now if it is imported, else as soon as it is."""
        if name in sys.modules:
            action(sys.modules[name])
            return
        why = self._why

        @contextmanager
        def around(module: Any) -> Iterator[None]:
            yield
            with self._because(why):
                action(module)

        self._watch(ImportWatcher(lambda wanted: wanted == name, around))

    def before_import(self, name: str, action: Callable[[], None]) -> None:
        """Calls ``action`` before a module is imported, when it is first looked for; now if it is already imported."""
        if name in sys.modules:
            action()
            return
        why, are_left = self._why, [action]

        def act() -> None:
            with self._because(why):
                are_left.pop()()

        self._watch(ImportWatcher(lambda wanted: wanted == name and bool(are_left), nullcontext, before=act))

    def after_imports(self, is_watched: Callable[[str], bool], action: Callable[[Any], None]) -> None:
        """Does something with every module of such a name that is imported from now on."""
        why = self._why

        @contextmanager
        def around(module: Any) -> Iterator[None]:
            yield
            with self._because(why):
                action(module)

        self._watch(ImportWatcher(is_watched, around))

    def around_imports(self, prefixes: tuple[str, ...], around: Callable[[], AbstractContextManager[Any]]) -> None:
        """Imports modules with these prefixes inside a context."""
        self._watch(ImportWatcher(lambda wanted: wanted.startswith(prefixes), lambda module: around()))

    def _watch(self, watcher: ImportWatcher) -> None:
        sys.meta_path.insert(0, watcher)
        self._undo.append(lambda: sys.meta_path.remove(watcher))

    @contextmanager
    def _because(self, why: str) -> Iterator[None]:
        before, self._why = self._why, why
        try:
            yield
        finally:
            self._why = before

    def finally_call(self, action: Callable[[], Any]) -> None:
        """Adds a function for ``undo`` to call."""
        self._undo.append(action)

    def undo(self) -> None:
        """Undoes everything, newest first."""
        error: BaseException | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as problem:
                error = error or problem
        if error is not None:
            raise error

    def _lay(self, place: _Place, make: Make) -> None:
        self._undo.append(_lay(place, _Layer(self.who, self._why, make)))


def active_patches() -> list[Patch]:
    """All active replacements, by place."""
    with _lock:
        laid = [Patch(str(place), layer.who, layer.why, place.was_there) for place in _places.values() for layer in place.layers]
        return sorted([*laid, *_kernels.values()], key=lambda patch: patch.place)


@contextmanager
def set_aside(is_chosen: Callable[[Any, Any], bool]) -> Iterator[Aside]:
    """Context manager: places hold their original values.

    ``is_chosen`` selects places by owner and name. Contexts may be nested.
    """
    with _lock:
        aside = Aside([place for place in _places.values() if is_chosen(place.owner, place.name)])
        aside.step_aside()
    try:
        yield aside
    finally:
        with _lock:
            aside.step_back()


class Aside:
    """The places that are set aside."""

    def __init__(self, places: list[_Place]) -> None:
        self._places = places

    @property
    def originals(self) -> list[Any]:
        """The values that the places hold now."""
        return [place.own() for place in self._places]

    def step_aside(self) -> None:
        for place in self._places:
            place.step_aside()

    def step_back(self) -> None:
        for place in reversed(self._places):
            place.step_back()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Context manager: all replacements are in place again."""
        self.step_back()
        try:
            yield
        finally:
            self.step_aside()


# -- places --------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Layer:
    who: str
    why: str
    make: Make


class _Place:
    """A place whose value can be set, with its original value and the layers over it."""

    def __init__(self, owner: Any, name: Any) -> None:
        self.owner, self.name = owner, name  # the owner is held, so that its identity stays its own
        self.layers: list[_Layer] = []
        self._original = self._value = self.own()
        self._is_inherited = self._original is _MISSING and self.found() is not None
        self._num_aside = 0
        self._before_aside: tuple[Any, list[_Layer]] = (_MISSING, [])

    @property
    def was_there(self) -> bool:
        return self._original is not _MISSING or self._is_inherited

    @property
    def key(self) -> tuple[type, int, Any]:
        return type(self), id(self.owner), self.name

    def lay(self, layer: _Layer) -> None:
        self.layers.append(layer)
        if not self._num_aside:
            self._cover(layer)

    def take_away(self, layer: _Layer) -> None:
        self.layers.remove(layer)
        if self._num_aside:
            return
        if not _is_same(self.own(), self._value):
            return  # somebody else has patched on top: their value stays, and ours below it only passes on
        self._rebuild()

    def step_aside(self) -> None:
        """Shows the original until ``step_back`` has been called as often."""
        self._num_aside += 1
        if self._num_aside == 1:
            self._before_aside = (self.own(), list(self.layers))
            self._show_original()

    def step_back(self) -> None:
        self._num_aside -= 1
        if self._num_aside:
            return
        shown, layers = self._before_aside
        if layers == self.layers and shown is not _MISSING:
            self.put(shown)  # the very same as before: others may hold on to it
        else:
            self._rebuild()

    def _rebuild(self) -> None:
        self._show_original()
        self._value = self._original
        for remaining in self.layers:
            self._cover(remaining)

    def _show_original(self) -> None:
        if self._original is _MISSING:
            if self.own() is not _MISSING:
                self.remove()
        else:
            self.put(self._original)

    def _cover(self, layer: _Layer) -> None:
        self._value = layer.make(self.found())
        self.put(self._value)

    def own(self) -> Any:
        """The value set at this very place."""
        raise NotImplementedError

    def found(self) -> Any:
        """The value that a reader finds there, ``None`` if there is none."""
        raise NotImplementedError

    def put(self, value: Any) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError


class _Attribute(_Place):
    def __str__(self) -> str:
        return f"{_path(self.owner)}.{self.name}"

    def own(self) -> Any:
        return vars(self.owner).get(self.name, _MISSING)

    def found(self) -> Any:
        own = self.own()
        return getattr(self.owner, self.name, None) if own is _MISSING else own

    def put(self, value: Any) -> None:
        setattr(self.owner, self.name, value)

    def remove(self) -> None:
        delattr(self.owner, self.name)


class _EntryPlace(_Place):
    def __str__(self) -> str:
        return f"a {type(self.owner).__name__}'s entry {_path(self.name)}"

    def own(self) -> Any:
        return self.owner.get(self.name, _MISSING)

    def found(self) -> Any:
        return self.owner.get(self.name)

    def put(self, value: Any) -> None:
        self.owner[self.name] = value

    def remove(self) -> None:
        self.owner.pop(self.name)


_places: dict[tuple[type, int, Any], _Place] = {}
_kernels: dict[int, Patch] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    """For the child of a fork: a thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _is_same(one: Any, other: Any) -> bool:
    """Compares values; environments return a new string for every lookup."""
    return one is other or (isinstance(one, str) and one == other)


def _path(thing: Any) -> str:
    """``torch.nn.modules.module.Module``, for a class, a module or a function."""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if name is None:
        return str(thing)
    module = getattr(thing, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) and module != name else str(name)


def _lay(place: _Place, layer: _Layer) -> Callable[[], None]:
    """Adds a layer; returns the function that removes it."""
    with _lock:
        place = _places.setdefault(place.key, place)
        place.lay(layer)

    def take_away() -> None:
        with _lock:
            place.take_away(layer)
            if not place.layers:
                _places.pop(place.key, None)

    return take_away


class ImportWatcher:
    """Watches modules being found and imported, without changing how."""

    def __init__(
        self,
        is_watched: Callable[[str], bool],
        around: Callable[[Any], AbstractContextManager[Any]],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._is_watched, self._around, self._before = is_watched, around, before
        self._asked: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self._asked or not self._is_watched(name):
            return None
        self._asked.add(name)
        try:
            self._before()
            spec = importlib.util.find_spec(name)
        finally:
            self._asked.discard(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                with self._around(module):
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
