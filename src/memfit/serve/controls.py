"""The controls of the page, from the table that the flags are from: a new optimizer or strategy appears by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from memfit import __version__
from memfit.choices import AXES, Axis
from memfit.hardware import gpus
from memfit.models import MODELS
from memfit.units import GIB

FIRST: Final = ("batch", "seq", "strategy", "precision", "optimizer", "checkpointing", "compile", "lora", "quantize")
"""What most people change; the other controls are folded away."""
SLIDERS: Final[Mapping[str, range]] = {
    "world_size": range(11),
    "batch": range(9),
    "seq": range(7, 18),
    "microbatches": range(9),
    "tp": range(7),
    "pp": range(7),
    "cp": range(7),
    "ep": range(7),
    "lora": range(2, 9),
}
"""Sliders go over these powers of two."""
MOST_FILES: Final = 200
_MOST_BYTES: Final = 1 << 20


def describe_controls(folder: Path) -> dict[str, Any]:
    """All that the page offers, in the order in which it is shown."""
    return {
        "version": __version__,
        "folder": folder.name or str(folder),
        "models": [_model(name) for name in MODELS],
        "gpus": [{"name": gpu.name, "text": f"{gpu.name}, {gpu.total_bytes / GIB:.0f} GiB"} for gpu in gpus()],
        "worldSizes": _stops("world_size"),
        "axes": [_control(name, AXES[name]) for name in (*FIRST, *(name for name in AXES if name not in FIRST))],
        "configs": [str(path.relative_to(folder)) for path in sorted(folder.glob("**/config.json"))[:MOST_FILES]],
        "functions": [*_functions(folder)][:MOST_FILES],
        "scripts": [path.name for path in sorted(folder.glob("*.py"))[:MOST_FILES]],
    }


def _model(name: str) -> dict[str, Any]:
    config = MODELS[name]
    return {"name": name, "text": f"{name} ({config.num_parameters / 1e9:,.3g} billion)", "context": config.context}


def _control(name: str, axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "label": name.replace("_", " "), "help": axis.help, "isFirst": name in FIRST}
    if axis.choices is not None:
        found |= {"kind": "menu", "options": [*axis.choices], "usual": f"{next(iter(axis.choices))} by default"}
    elif name in SLIDERS:
        found |= {"kind": "slider", "stops": _stops(name), "usual": _usual(axis)}
    else:
        found |= {"kind": "number" if axis.is_number else "text", "usual": _usual(axis)}
    return found


def _usual(axis: Axis) -> str:
    """What an empty field shows: ``1``, ``none``; ``default`` where it takes more than a word to say."""
    usual = axis.default.partition(" by default")[0]
    return "default" if " " in usual else usual


def _stops(name: str) -> list[int]:
    """The values of a slider; 0, as usual, before those that do not begin with 1."""
    powers = SLIDERS[name]
    return [*([0] if powers.start else []), *(1 << power for power in powers)]


def _functions(folder: Path) -> Iterator[str]:
    """``train.py:build``: functions at the top of files of the folder that may return a step. The files are read, not run."""
    for path in sorted(folder.glob("*.py")):
        try:
            if path.stat().st_size > _MOST_BYTES:
                continue
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and _makes_a_function(node):
                yield f"{path.name}:{node.name}"


def _makes_a_function(node: ast.FunctionDef) -> bool:
    return any(isinstance(inner, ast.FunctionDef) for inner in node.body) and not node.decorator_list
