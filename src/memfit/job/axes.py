"""The axes of a grid: what was given for each, one value or several, and every combination of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from memfit.choices import AXES
from memfit.errors import ConfigError
from memfit.hardware import find_gpu
from memfit.job.recipe import RECIPE_FIELDS, read_mesh

Axes = dict[str, tuple[Any, ...]]
"""What was given for each axis, one value or several."""

NUMBERS: Final = ("world_size", *(name for name, axis in AXES.items() if axis.is_number))
MODEL_AXES: Final = tuple(name for name in RECIPE_FIELDS if name not in ("model", "hf"))


def read_axes(given: Mapping[str, Any]) -> Axes:
    """Each axis as a tuple of plain values; ``None`` was not given."""
    return {
        name: tuple(_plain(name, value) for value in _several(name, values)) for name, values in given.items() if values is not None
    }


def _several(name: str, values: Any) -> Sequence[Any]:
    one_mesh = name == "mesh" and isinstance(values, Sequence) and all(isinstance(value, int) for value in values)
    found = [values] if isinstance(values, str) or not isinstance(values, Sequence) or one_mesh else list(values)
    if not found:
        raise ConfigError(f"{name} has no values: give one or more, or leave it out")
    return found


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Enum):  # FSDP's words, whose values are torch's numbers, go by their names
        value = value.value if isinstance(value.value, str) else value.name.lstrip("_").lower()
    if name == "gpu":
        return find_gpu(value).name
    if name == "mesh":
        return _mesh(value)
    if name in NUMBERS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{name} takes whole numbers of at least 1, not {value!r}")
    try:
        json.dumps(value)
    except TypeError:
        raise ConfigError(
            f"{name}={value!r} cannot be handed to the process of a cell: use numbers, words, lists or None"
        ) from None
    return value


def _mesh(value: Any) -> tuple[int, ...] | str:
    """``"dp=8,tp=8"``, ``"8x8"`` or ``(8, 8)``."""
    if isinstance(value, str) and "=" in value:
        return ",".join(f"{axis}={size}" for axis, size in read_mesh(value).items())
    parts = value.lower().split("x") if isinstance(value, str) else value
    try:
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        raise ConfigError(
            f"cannot read {value!r} as a mesh: write it like dp=8,tp=8,pp=8, or 8x8 for replicas x GPUs that shard"
        ) from None


def combinations(axes: Axes) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))
