"""What is trained: a model by name, a Hugging Face config, or a function of the user's.

A function is called with the axes that were given: ``--strategy full_shard,no_shard`` calls ``build(strategy="full_shard")`` and
``build(strategy="no_shard")``. The GPU and the world size are the prediction's own. A script is not in here: it says itself what it
trains, and ``memfit run`` reads it with its launcher (``memfit.predict.scripts``).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from memfit.errors import ConfigError
from memfit.models import MODELS

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
"""``meta-llama/Meta-Llama-3-8B``."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is trained; exactly one of the fields is given."""

    model: str = ""
    """A name that memfit knows: ``llama3-8b``."""
    hf: str = ""
    """The path of a Hugging Face ``config.json``; ``of`` also takes its folder, or a name of the hub that is in its cache."""
    function: str = ""
    """``/path/to/train.py:build``."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.model, self.hf, self.function))) != 1:
            raise ConfigError(
                "say what is trained: a model by name (--model llama3-8b), a Hugging Face config (--hf config.json), or a function "
                "of your own (train.py:build); one of them"
            )

    @classmethod
    def of(cls, function: str | Callable[..., Any] = "", model: str = "", hf: str | Path = "") -> Subject:
        """From what a user gives: paths become absolute, so that other processes find the same files."""
        return cls(model=model, hf=find_config(hf) if hf else "", function=locate(function) if function else "")

    @property
    def name(self) -> str:
        return self.model or self.hf or Path(self.function).name

    @property
    def inputs(self) -> dict[str, str]:
        """Its part of a cell's inputs."""
        return {name: value for name, value in asdict(self).items() if value}


def locate(function: str | Callable[..., Any]) -> str:
    """``/path/to/train.py:build`` for a name like it, or for a function that is in a file."""
    if not callable(function):
        path, _, name = function.rpartition(":")
        if function.endswith(".py"):
            raise ConfigError(
                f"{function} is a script: memfit run {function} predicts it as it is; for a function in it that returns a training "
                f"step, write {function}:build"
            )
        if not path.endswith(".py") or not name or not Path(path).is_file():
            raise _no_function(function)
        return f"{Path(path).resolve()}:{name}"
    source = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if source is None or "<" in function.__qualname__ or not Path(source).is_file():
        raise ConfigError(
            f"{function!r} cannot be found again by the process of a cell: define it at the top of a file, with def, or give its "
            "name like 'train.py:build'"
        )
    return f"{Path(source).resolve()}:{function.__qualname__}"


def find_config(hf: str | Path) -> str:
    """The absolute path of a Hugging Face ``config.json``: given as it is, as its folder, or as a name of the hub whose file is in
    the cache of ``huggingface_hub``."""
    path = Path(hf)
    if path.is_dir():
        path /= "config.json"
        if not path.is_file():
            raise ConfigError(f"there is no config.json in the folder {hf}")
    if path.is_file() or not _HUB_NAME.fullmatch(str(hf)) or path.suffix == ".json":
        return str(path.resolve())
    cached = _in_cache(str(hf))
    if cached is None:
        raise ConfigError(
            f"{hf} is neither a file or folder here nor in the cache of the Hugging Face hub. Fetch its config (a few KiB, no "
            f"weights) with: hf download {hf} config.json"
        )
    return cached


def _in_cache(name: str) -> str | None:
    """The config of a repository of the hub, where it was fetched before."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(name, "config.json")
    return found if isinstance(found, str) else None


def _no_function(where: str) -> ConfigError:
    named = f"; or name a model: --model {where}, model={where!r} in Python" if where in MODELS else ""
    return ConfigError(f"cannot read {where!r} as a function in a file: write it like train.py:build{named}")


def load_function(where: str) -> Callable[..., Any]:
    """Runs the file, not as ``__main__``, and takes the function out of it."""
    path, _, name = where.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise _no_function(where)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"{path} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def check_arguments(where: str, names: Iterable[str]) -> None:
    """Refuses an axis that the function has no argument for, without running the file; one made in other ways is seen later."""
    path, _, name = where.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if found is None or found.args.kwarg is not None:
        return
    takes = [argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)]
    for missing in [each for each in names if each not in takes]:
        raise ConfigError(
            f"{name} in {path} takes no argument {missing!r}, so it cannot be varied: write def {name}(*, {missing}) and use "
            "it, or leave it out"
        )
