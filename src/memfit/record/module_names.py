"""Fully qualified names of modules, as ``named_modules`` gives them: ``layers.3.attention.wq``.

Names of the first model have no prefix, its root is ``""``; names of further models begin with their class. Wrappers that add a
level of their own (engines, checkpoint and compile wrappers) share the name of what they wrap.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

from torch import nn

from memfit.engines import ENGINES


@cache
def _wrapper_level(of_engines: tuple[str, ...]) -> re.Pattern[str]:
    levels = "|".join(("_checkpoint_wrapped_module", "_orig_mod", *filter(None, of_engines)))
    return re.compile(rf"(?:^|(?<=\.))(?:{levels})(?:\.|$)")


def unwrapped_name(name: str) -> str:
    """A dotted name without the levels that wrappers add."""
    return _wrapper_level(tuple(engine.wrapper_level for engine in ENGINES.values())).sub("", name).rstrip(".")


def told_apart(path: str, first_root_kind: str) -> str:
    """The path of a further model, which begins with its class. A second model of the same class is ``Net#2``."""
    root, dot, rest = path.partition(".")
    kind, _, number = root.partition("#")
    return f"{kind}#{int(number or 1) + 1}{dot}{rest}" if kind == first_root_kind else path


class NumbersModules(Protocol):
    """Numbers module paths: a ledger's builder, or something that passes them to one later."""

    def module(self, path: str, kind: str, parent: int = -1, written: str = "") -> int:
        """Adds a path; returns its number. ``written``: where its class is, as in ``RunInfo.sources``."""


class ModuleNames:
    """Assigns numbers to modules when their tree is first seen."""

    def __init__(self, builder: NumbersModules) -> None:
        self._builder = builder
        self._known: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._numbers: dict[str, int] = {}
        self._paths: list[str] = []
        self._first_root_kind = ""
        self._in_first_tree: list[bool] = []
        self._written: dict[type, str] = {}

    def number(self, module: nn.Module) -> int | None:
        """The module's number, ``None`` if it has none."""
        entry = self._known.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def living(self) -> Iterator[tuple[nn.Module, int]]:
        """The named modules that still exist."""
        for reference, number in list(self._known.values()):
            module = reference()
            if module is not None:
                yield module, number

    def name_tree(self, root: nn.Module) -> str:
        """Names a root and all modules below it; returns the prefix of their names."""
        prefix = self._prefix_for(root)
        if not self._paths:
            self._first_root_kind = type(root).__name__
        for name, module in root.named_modules(remove_duplicate=False):
            if self.number(module) is None:
                number = self._number_for(_join(prefix, _strip_data_parallel(root, name)), module, is_root=module is root)
                self._known[id(module)] = (weakref.ref(module), number)
        return prefix

    def path(self, number: int) -> str:
        return self._paths[number]

    def name_in(self, module: nn.Module, name: str) -> str:
        """The dotted name of something in a module; ``name`` alone if the module has no name."""
        number = self.number(module)
        return name if number is None else _join(self._paths[number], name)

    def class_name(self, number: int) -> str:
        """The path, prefixed with its root's class: ``Llama.layers.0``."""
        path = self._paths[number]
        if not self._in_first_tree[number]:
            return told_apart(path, self._first_root_kind)
        return f"{self._first_root_kind}.{path}" if path else self._first_root_kind

    def number_for_path(self, path: str) -> int:
        """The number of a path, -1 if it is unknown."""
        return self._numbers.get(path, -1)

    def parameter_name(self, root: nn.Module, prefix: str, name: str) -> str:
        """The dotted name of a parameter or buffer, as in the model without wrappers."""
        return _join(prefix, _strip_data_parallel(root, name))

    def _prefix_for(self, root: nn.Module) -> str:
        known = self.number(root)
        if known is not None:
            return self._paths[known]
        kind = type(root).__name__
        if not self._numbers:
            return ""
        # A throw-away module without parameters (a loss made on the spot) is one name however many objects come and go.
        if next(root.parameters(), None) is None or kind not in self._numbers:
            return kind
        suffix = 2
        while f"{kind}#{suffix}" in self._numbers:
            suffix += 1
        return f"{kind}#{suffix}"

    def _number_for(self, path: str, module: nn.Module, *, is_root: bool) -> int:
        number = self._numbers.get(path)
        if number is None:
            parent = -1 if is_root else self._numbers.get(path.rpartition(".")[0], -1)
            kind = type(module)
            number = self._numbers[path] = self._builder.module(path, kind.__name__, parent, self._where(kind))
            self._paths.append(path)
            self._in_first_tree.append(self._in_first_tree[parent] if parent >= 0 else not path)
        return number

    def _where(self, kind: type) -> str:
        written = self._written.get(kind)
        if written is None:
            written = self._written[kind] = written_at(kind)
        return written


def written_at(kind: type) -> str:
    """The file and line of a class's forward: below the working folder by its path there, elsewhere by the name of its module.
    Empty for torch's own, and where it is not written in Python."""
    forward = inspect.unwrap(getattr(kind, "forward", None))  # type: ignore[arg-type]
    code, home = getattr(forward, "__code__", None), getattr(forward, "__module__", "") or ""
    if code is None or home.partition(".")[0] == "torch":
        return ""
    path, here = Path(code.co_filename), Path.cwd()
    if path.is_relative_to(here):
        path = path.relative_to(here)
    where = home if path.is_absolute() and home != "__main__" else path
    return f"{where}:{code.co_firstlineno}"


def _strip_data_parallel(root: nn.Module, name: str) -> str:
    if any(engine.is_wrapper(root) for engine in ENGINES.values()):
        name = "" if name == "module" else name.removeprefix("module.")
    return unwrapped_name(name)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
