"""The flags that say what is trained, and how: for one configuration, or several with commas between."""

from __future__ import annotations

import argparse
from typing import Any

from memfit.choices import AXES
from memfit.errors import ConfigError
from memfit.models import MODELS


def add_subject(parser: argparse.ArgumentParser, function_help: str) -> None:
    parser.add_argument("function", nargs="?", default="", metavar="FILE.py:FUNCTION", help=function_help)
    parser.add_argument("--model", default="", metavar="NAME", help=f"a model by name, in place of a function: {', '.join(MODELS)}")
    parser.add_argument("--hf", default="", metavar="CONFIG", help="a Hugging Face config.json, in place of a function; no weights")


def add_recipe(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for name, axis in AXES.items():
        alone: dict[str, Any] = {"nargs": "?", "const": axis.bare} if axis.bare else {}
        group.add_argument(*axis.flags, dest=name, metavar=name.upper(), help=axis.help, **alone)


def given(args: argparse.Namespace) -> dict[str, list[Any]]:
    """The flags that were given, each with its values."""
    return {name: read_values(name, getattr(args, name)) for name in AXES if getattr(args, name) is not None}


def read_values(name: str, text: str) -> list[Any]:
    """``full_shard,no_shard`` and ``8,64``."""
    words = [word.strip() for word in text.split(",")]
    if name == "mesh" and "=" in text:
        return _meshes(words)
    if not all(words):
        raise ConfigError(f"cannot read {text!r} for {name}: write values with commas between, like A,B")
    is_number = name == "world_size" or (name in AXES and AXES[name].is_number)
    return [_number(name, word) for word in words] if is_number else words


def _meshes(words: list[str]) -> list[str]:
    """``dp=8,tp=8,dp=64``: a name that comes again begins the next mesh."""
    found: list[dict[str, str]] = [{}]
    for word in words:
        axis = word.partition("=")[0]
        if axis in found[-1]:
            found.append({})
        found[-1][axis] = word
    return [",".join(mesh.values()) for mesh in found]


def _number(name: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{name.replace('_', '-')} takes whole numbers, not {word!r}") from None
