"""Packages that cannot be installed without a GPU, and modules that answer in their place.

::

    import flash_attn ──> Python's own finders ── found ──> the real package
                                │ not found
                                └──> Finder ──> MODULES["flash_attn"](module) of the stand-in's file      fills an empty module

A stand-in is imported only where the real package is not there. It has a version and a distribution, so that libraries that check
(``importlib.util.find_spec``, ``importlib.metadata.version``) find what they look for.

A script that goes on without a package (``try: import apex ... except ImportError``) goes on without it here too, because it
is not known whether the machine with the GPU has it: the assumptions name it, and ``MEMFIT_INSTALLED=apex`` says that it is there.
Torch finds none that the script has not imported: it works as on this machine.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.metadata
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from memfit.phantom.current import CurrentWorld
from memfit.torch_compat.patches import ImportWatcher, Patches
from memfit.torch_compat.patches import __name__ as patches_module

VARIABLE = "MEMFIT_INSTALLED"
"""Names packages, with commas between them, that are installed where the run will be."""

Fill = Callable[[ModuleType], None]
"""Puts into an empty module what the real one has."""

_TORCH = str(Path(torch.__file__).parent) + os.sep
_BETWEEN = ("importlib", "_frozen_importlib", __name__, patches_module)
"""Modules between one who asks and this file."""
_CATCH_ALL = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """What answers in the place of one package."""

    package: str
    """As it is imported."""
    distribution: str
    """As it is installed."""
    version: str
    file: str
    """The module beside this one that has ``MODULES``, perhaps ``ANY_MODULE`` and ``ABSENT``. It is read when the package is first
    looked for."""
    is_everywhere: bool = False
    """Is it wherever a GPU is? Then a script that could go on without it does not have to."""
    answers_checks: bool = True
    """Does ``find_spec`` find it? Not where libraries switch to it unasked as soon as it is there."""
    not_for: tuple[str, ...] = ()
    """Packages that switch to it unasked as soon as it is there, and do not find it unless the user says that it is installed."""
    instead: bool = False
    """Does it go before the real module, where there is one: a compiled one, which would follow the pointers of tensors?"""

    @property
    def modules(self) -> Mapping[str, Fill]:
        """By full name. The package itself is one of them; what lies between them need not be named."""
        filled: Mapping[str, Fill] = self._contents.MODULES
        return {name: fill for name, fill in filled.items() if name.partition(".")[0] == self.package}

    @property
    def any_module(self) -> Fill | None:
        """For modules that ``MODULES`` does not name; without it they do not exist."""
        return getattr(self._contents, "ANY_MODULE", None)

    @property
    def _contents(self) -> ModuleType:
        return importlib.import_module(f"{__package__}.{self.file}")

    def has(self, name: str) -> bool:
        if name == self.package:
            return True
        if self.any_module is not None:
            return not name.startswith(getattr(self._contents, "ABSENT", ()))
        return any(known == name or known.startswith(f"{name}.") for known in self.modules)

    def fill(self, module: ModuleType) -> None:
        fill = self.modules.get(module.__name__) or self.any_module
        if fill is not None:
            fill(module)


_made: dict[str, ModuleType] = {}
"""Every stand-in module that this process has made: what has imported it once must not meet a second one."""


def filling(*contents: Any, **named: Any) -> Fill:
    """Puts functions and classes into a module under their own names, others under the names that they are given here."""
    return lambda module: module.__dict__.update({each.__name__: each for each in contents} | named)


def install(patches: Patches, stand_ins: Iterable[StandIn], world: CurrentWorld) -> None:
    """From now on, and until the patches are undone, imports find the stand-ins."""
    known = {stand_in.package: stand_in for stand_in in stand_ins}
    at_last = Finder({name: known[name] for name in known if not known[name].instead}, world)
    at_first = Finder({name: known[name] for name in known if known[name].instead}, world)
    sys.meta_path.append(at_last)
    sys.meta_path.insert(0, at_first)

    def remove() -> None:
        for finder in (at_first, at_last):
            sys.meta_path.remove(finder)
        for name, module in _made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    patches.finally_call(remove)


def answered_for() -> Iterator[tuple[str, str]]:
    """The packages for which checks of what is installed are answered now, each with its distribution."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            yield from ((each.stand_in.package, each.stand_in.distribution) for each in finder.find_distributions())


def is_stand_in(module: ModuleType) -> bool:
    return _made.get(module.__name__) is module


class Finder(importlib.abc.MetaPathFinder):
    """Answers imports, and questions about what is installed."""

    def __init__(self, stand_ins: Mapping[str, StandIn], world: CurrentWorld) -> None:
        self._stand_ins = stand_ins
        self._world = world
        self._told: dict[str, str] = {}
        """Where a script first went on without a distribution."""
        self._installed = frozenset(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package = name.partition(".")[0]
        stand_in = self._stand_ins.get(package)
        if name != package and package in sys.modules and not is_stand_in(sys.modules[package]):
            return None  # what is really there has its own modules and no others
        if stand_in is None or not stand_in.has(name) or not self._is_wanted(stand_in, _Question.of_this_moment()):
            return None
        spec = ModuleSpec(
            name, _Loader(stand_in, self._world), origin=f"a stand-in of memfit for {stand_in.distribution}", is_package=True
        )
        spec.submodule_search_locations = []
        return spec

    def _is_wanted(self, stand_in: StandIn, question: _Question) -> bool:
        if question.is_torchs:
            return stand_in.package in sys.modules  # what the script has imported is there as a whole
        if stand_in.is_everywhere or stand_in.instead or self._is_said_to_be_there(stand_in):
            return True
        if question.is_from(stand_in.not_for):
            return False
        if question.is_check:
            return stand_in.answers_checks
        if question.can_do_without:
            if question.is_the_scripts:
                name = stand_in.distribution
                self._world.say(
                    f"{name} is not installed here, and {self._told.setdefault(name, question.place)} goes on without it: if it is "
                    f"installed where the run will be, say so with {VARIABLE}={name}"
                )
            return False
        return True

    def find_distributions(self, context: Any = None) -> Iterator[_Distribution]:
        """For ``importlib.metadata``."""
        wanted, question = getattr(context, "name", None), _Question.of_this_moment()
        for stand_in in self._stand_ins.values():
            is_named = wanted is None or _normal(wanted) == _normal(stand_in.distribution)
            answers = self._is_said_to_be_there(stand_in) or (stand_in.answers_checks and not question.is_from(stand_in.not_for))
            if is_named and answers and not stand_in.instead and not _is_really_there(stand_in):
                yield _Distribution(stand_in)

    def _is_said_to_be_there(self, stand_in: StandIn) -> bool:
        return bool(self._installed & {stand_in.package, stand_in.distribution})


class _Loader(importlib.abc.Loader):
    """Makes one module."""

    def __init__(self, stand_in: StandIn, world: CurrentWorld) -> None:
        self._stand_in, self._world = stand_in, world

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return _made.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        stand_in = self._stand_in
        if module.__name__ == stand_in.package and not stand_in.is_everywhere and not stand_in.instead:
            self._world.say(
                f"{stand_in.package} is not installed here: what stands in its place takes the memory that version "
                f"{stand_in.version} takes, by its sources"
            )
        if module.__name__ not in _made:
            module.__dict__.setdefault("__version__", stand_in.version)
            stand_in.fill(module)
            _made[module.__name__] = module


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, stand_in: StandIn) -> None:
        self.stand_in = stand_in

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {self.stand_in.distribution}\nVersion: {self.stand_in.version}\n"
        return f"{self.stand_in.package}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _is_really_there(stand_in: StandIn) -> bool:
    others = [other for other in sys.meta_path if not isinstance(other, Finder | ImportWatcher) and hasattr(other, "find_spec")]
    return any(other.find_spec(stand_in.package, None, None) is not None for other in others)


# -- who asks -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """An import, or a check whether one would succeed."""

    frame: FrameType | None
    is_check: bool

    @classmethod
    def of_this_moment(cls) -> _Question:
        frame: FrameType | None = sys._getframe(1)
        is_check = False
        while frame is not None and _name(frame).startswith(_BETWEEN):
            if _name(frame) == "importlib.util" and frame.f_code.co_name == "find_spec":
                is_check = True
            elif _name(frame) == patches_module:
                is_check = False  # it watches an import, and asks on its behalf
            frame = frame.f_back
        return cls(frame, is_check)

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename if self.frame is not None else ""

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.file)}:{self.frame.f_lineno if self.frame is not None else 0}"

    @property
    def is_torchs(self) -> bool:
        return self.file.startswith(_TORCH)

    def is_from(self, packages: tuple[str, ...]) -> bool:
        return self.frame is not None and _name(self.frame).partition(".")[0] in packages

    @property
    def is_the_scripts(self) -> bool:
        return "site-packages" not in self.file and "dist-packages" not in self.file

    @property
    def can_do_without(self) -> bool:
        """Does the code that asks catch the error which it would get?"""
        if self.frame is None:
            return False
        try:
            tree = ast.parse("".join(linecache.getlines(self.file, self.frame.f_globals)))
        except SyntaxError:
            return False
        line = self.frame.f_lineno
        return any(isinstance(node, ast.Try) and _is_in_body(node, line) and _catches_imports(node) for node in ast.walk(tree))


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_in_body(node: ast.Try, line: int) -> bool:
    return any(statement.lineno <= line <= (statement.end_lineno or statement.lineno) for statement in node.body)


def _catches_imports(node: ast.Try) -> bool:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            name = kind.attr if isinstance(kind, ast.Attribute) else kind.id if isinstance(kind, ast.Name) else None
            raises_again = any(isinstance(inner, ast.Raise) for inner in ast.walk(ast.Module(body=handler.body, type_ignores=[])))
            if (kind is None or name in _CATCH_ALL) and not raises_again:
                return True
    return False
