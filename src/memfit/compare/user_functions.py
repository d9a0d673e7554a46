"""Functions of the user's: ``train.py:build``, and what each cell calls it with.

``build`` is called with the axes that were given, by name: ``--strategy full_shard,no_shard`` calls
``build(strategy="full_shard")`` and ``build(strategy="no_shard")``. The GPU and the world size are the prediction's own.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from memfit.compare.cell import Inputs
from memfit.compare.grid import recipe_of
from memfit.errors import ConfigError

OF_PREDICT = ("function", "gpu", "world_size")
"""What a prediction is told, not the function."""


def locate(function: str | Callable[..., Any]) -> str:
    """``/path/to/train.py:build`` for a name like it, or for a function that is in a file."""
    if not callable(function):
        path, _, name = function.rpartition(":")
        if not path.endswith(".py") or not name or not Path(path).is_file():
            raise ConfigError(f"cannot read {function!r} as a function in a file: write it like train.py:build")
        return f"{Path(path).resolve()}:{name}"
    source = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if source is None or "<" in function.__qualname__ or not Path(source).is_file():
        raise ConfigError(
            f"{function!r} cannot be found again by the process of a cell: define it at the top of a file, with def, or give its "
            "name like 'train.py:build'"
        )
    return f"{Path(source).resolve()}:{function.__qualname__}"


def load_function(where: str) -> Callable[..., Any]:
    """Runs the file, not as ``__main__``, and takes the function out of it."""
    path, _, name = where.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"cannot read {where!r} as a function in a file: write it like train.py:build")
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


def build_of(inputs: Inputs) -> Callable[[], Any]:
    """What ``memfit.predict`` takes, for a cell of any kind."""
    if "function" in inputs:
        return functools.partial(load_function(inputs["function"]), **arguments(inputs))
    return recipe_of(inputs).build


def arguments(inputs: Inputs) -> Inputs:
    """What the function is called with."""
    return {name: value for name, value in inputs.items() if name not in OF_PREDICT}


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
