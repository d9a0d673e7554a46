"""The cells of a grid: every combination of what was given for each axis."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from memfit.choices import AXES
from memfit.compare.cell import Inputs
from memfit.errors import ConfigError
from memfit.hardware import find_gpu
from memfit.models import Recipe
from memfit.models.degrees import read_mesh
from memfit.models.recipe import RECIPE_FIELDS

Axes = dict[str, tuple[Any, ...]]
"""What was given for each axis, one value or several."""

NUMBERS: Final = ("world_size", *(name for name, axis in AXES.items() if axis.is_number))
MODEL_AXES: Final = tuple(name for name in RECIPE_FIELDS if name not in ("model", "hf"))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is trained: a model by name, a Hugging Face config, or a function of the user's."""

    model: str = ""
    hf: str = ""
    function: str = ""
    """``/path/to/train.py:build``."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.model, self.hf, self.function))) != 1:
            raise ConfigError(
                "say what is trained: a model by name (--model llama3-8b), a Hugging Face config (--hf config.json), or a function "
                "of your own (train.py:build); one of them"
            )

    @property
    def name(self) -> str:
        return self.model or self.hf or Path(self.function).name

    @property
    def inputs(self) -> Inputs:
        """Its part of a cell's inputs."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells, and what was left out of them for a reason."""

    subject: Subject
    cells: tuple[Inputs, ...]
    left_out: tuple[str, ...] = field(default=())

    @property
    def varying(self) -> tuple[str, ...]:
        """The axes on which cells differ; not the engine, where it follows from the strategy."""
        names = dict.fromkeys(name for cell in self.cells for name in cell)
        found = [name for name in names if self._num_values(name) > 1]
        if "strategy" in found and self._num_values("strategy") == self._num_values("strategy", "engine"):
            found = [name for name in found if name != "engine"]
        return tuple(found)

    def _num_values(self, *names: str) -> int:
        return len({str([cell.get(name) for name in names]) for cell in self.cells})


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


def has_bf16(gpu: str) -> bool:
    """Does the GPU compute in bfloat16, or only in float16?"""
    return find_gpu(gpu).arch not in ("sm_70", "sm_75")


def combinations(axes: Axes) -> Iterator[Inputs]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def recipe_inputs(subject: Subject, chosen: Inputs) -> Inputs:
    """A cell of a named model, with every default written out; a word that is not known is refused."""
    options = {name: value for name, value in chosen.items() if name in MODEL_AXES}
    recipe = Recipe(model=subject.model, hf=subject.hf, **options).settled(chosen["world_size"], has_bf16=has_bf16(chosen["gpu"]))
    plain = {name: value for name, value in asdict(recipe).items() if name not in ("model", "hf")}
    return (
        ({"model": recipe.model} if recipe.model else subject.inputs)
        | {"gpu": chosen["gpu"], "world_size": chosen["world_size"]}
        | plain
    )


def recipe_of(inputs: Inputs) -> Recipe:
    """The recipe that a cell of a named model stands for."""
    options = {name: value for name, value in inputs.items() if name in RECIPE_FIELDS}
    mesh = inputs.get("mesh", ())
    return Recipe(**options | {"mesh": mesh if isinstance(mesh, str) else tuple(mesh)})
