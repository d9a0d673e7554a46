"""A plan, and the file that it is kept in.

The file is JSON with a version, so that people can read and compare plans. Nothing in it is executed, and everything is checked
before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from memfit.drawing import Drawn
from memfit.errors import ConfigError, PlanFormatError
from memfit.plan.handwritten import CHANGES_MODEL, is_of_model, write_code
from memfit.plan.policy import CheckpointingPolicy
from memfit.reading import RefusedFileError, read_regular
from memfit.units import Bytes, format_bytes

FORMAT: Final = "memfit plan"
VERSION: Final = 1
_NEWER: Final = "Upgrade memfit to read it"
_DAMAGED: Final = "Make the plan again"

Value = str | int | float | bool | None | list[Any]
"""What a recipe may say of one word."""


@dataclass(frozen=True, kw_only=True)
class PlanCost:
    """What a plan will take, as predicted for the plan as it is."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    """With memory to spare."""
    smallest_fit_bytes: int
    """The least that the allocator must be able to get."""
    step_seconds: float | None = None
    recompute_seconds: float = 0.0
    """Of the step: what computing again takes on the GPU."""
    offload_seconds: float = 0.0
    """Of the step: what the GPU waits for activations that come back from the host."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "step_seconds" and value is None:
                continue
            kinds = (int,) if name.endswith("_bytes") else (int, float)
            if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"{name} cannot be {value!r}")


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """What tells the model that a plan was made for from others."""

    kind: str
    """Its class."""
    num_parameters: int
    """As this rank holds them when the model first runs."""
    depths: Mapping[str, int] | None = field(default=None, compare=False)
    """How many modules each list of modules holds that is in no other list, by name; ``None`` in plans of older releases."""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not isinstance(self.num_parameters, int):
            raise ConfigError(f"a model is told by its class and its parameters, not by {self.kind!r} and {self.num_parameters!r}")
        if self.depths is not None and not isinstance(self.depths, Mapping):
            raise ConfigError(f"the depths of a model are numbers by name, not {self.depths!r}")


@dataclass(frozen=True, kw_only=True)
class ProgramMeans:
    """What is done to a program beside checkpointing, and changes nothing that it computes."""

    alloc_conf: str = ""
    """Settings of the allocator, for a program that has none of its own."""
    loss_rows: int = 0
    """Cross entropy goes over this many rows at a time; 0: over all at once."""

    def __post_init__(self) -> None:
        if not isinstance(self.alloc_conf, str) or not isinstance(self.loss_rows, int) or self.loss_rows < 0:
            raise ConfigError(f"settings and a number of rows, not {self.alloc_conf!r} and {self.loss_rows!r}")


@dataclass(frozen=True, kw_only=True)
class Plan(Drawn):
    """How to train so that it fits."""

    gpu: str
    budget_bytes: int
    """What the allocator may get from the GPU."""
    world_size: int = 1
    recipe: Mapping[str, Value] | None = None
    """How the model is trained, in the words of ``memfit.choices``; ``None`` where the user's own code says so."""
    checkpointing: CheckpointingPolicy | None = None
    """``None`` where nothing is computed again."""
    figures: PlanCost
    model: PlannedModel | None = None
    """``None`` in plans that say nothing of it: those of configurations that were searched, and of older releases."""
    means: ProgramMeans = ProgramMeans()
    """Of a plan for a script; ``memfit train`` does it, and ``memfit.apply`` does not."""
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.gpu, str):
            raise ConfigError(f"gpu is a name, not {self.gpu!r}")
        for name in ("budget_bytes", "world_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is a whole number of at least 1, not {value!r}")
        if self.recipe is not None:
            object.__setattr__(self, "recipe", dict(self.recipe))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))

    def __repr__(self) -> str:
        figures, time = self.figures, ""
        if figures.step_seconds is not None:
            time = f", {1e3 * figures.step_seconds:.1f} ms a step"
        return f"Plan({format_bytes(figures.smallest_fit_bytes)} of {format_bytes(self.budget_bytes)} on {self.gpu}{time})"

    @property
    def smallest_fit(self) -> Bytes:
        """The least that the allocator must be able to get for the plan to complete."""
        return Bytes(self.figures.smallest_fit_bytes)

    @property
    def step_seconds(self) -> float | None:
        return self.figures.step_seconds

    @property
    def beyond_checkpointing(self) -> dict[str, Value]:
        """What the plan does to a model beside checkpointing, in the words of its recipe: sharding, compilation, and the like.

        Batch, sequence length, mixed precision and optimizer belong to the training loop, and are not among it. Of a plan for a
        function of the user's, these are the arguments that it is to be called with.
        """
        recipe = dict(self.recipe or {})
        if not is_of_model(recipe):
            return recipe
        return {name: recipe[name] for name in CHANGES_MODEL if recipe.get(name) not in CHANGES_MODEL[name]}

    def check_for_programs(self) -> None:
        """``ConfigError`` for a plan that does more than can be done to a program from outside."""
        rest = ", ".join(f"{name}={value}" for name, value in self.beyond_checkpointing.items())
        if rest:
            raise ConfigError(
                f"this plan does more than can be done to a program from outside: {rest}. print(plan.code()) writes it"
            )

    def code(self) -> str:
        """Handwritten code that trains ``model`` as this plan does, with only torch."""
        return write_code(self.checkpointing, self.recipe, self.world_size)

    def emit(self, target: str) -> str:
        """The same for a target of ``memfit.plan.emit``: ``python``, ``fsdp2``, ``torchtitan``, ``accelerate`` or ``trainer``."""
        from memfit.plan.emit import emit  # plans are read without knowing any target

        return emit(target, self.checkpointing, self.recipe, self.world_size)

    def apply_to(self, model: Any) -> Any:
        """Has the model compute again what the plan says; sharding, compilation and the rest of the plan are left to the caller."""
        from memfit.plan.applying.model import apply_policy, checkpoint_blocks  # torch is imported here, and not before

        if self.checkpointing is None and self._word != "none":
            return checkpoint_blocks(model, self._word)
        return apply_policy(model, self.checkpointing, None if self.model is None else self.model.depths)

    @property
    def computes_again(self) -> bool:
        """Is anything computed again?"""
        return self._word != "none" if self.checkpointing is None else bool(self.checkpointing.groups)

    @property
    def _word(self) -> str:
        """For checkpointing, of a recipe; a policy takes its place."""
        recipe = self.recipe or {}
        return str(recipe.get("checkpointing", "none")) if is_of_model(recipe) else "none"

    # -- the file --------------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "asked": {"gpu": self.gpu, "budget_bytes": int(self.budget_bytes), "world_size": self.world_size},
            "recipe": None if self.recipe is None else dict(self.recipe),
            "checkpointing": None if self.checkpointing is None else self.checkpointing.to_json(),
            "figures": asdict(self.figures),
            "model": None if self.model is None else asdict(self.model),
            "means": asdict(self.means),
            "assumptions": list(self.assumptions),
        }

    def save(self, path: Path | str) -> None:
        Path(path).write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads a plan, from whomever it is."""
        try:
            found = json.loads(read_regular(Path(path)))
        except RefusedFileError as error:
            raise PlanFormatError(path, error.problem, error.advice) from error
        except (ValueError, RecursionError) as error:
            raise PlanFormatError(path, "is no plan: it is not JSON", _DAMAGED) from error
        return cls.from_json(found, path)

    @classmethod
    def from_json(cls, found: Any, path: Path | str = "the plan") -> Self:
        """What ``to_json`` gave; ``path`` is named where it cannot be used."""
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise PlanFormatError(path, "is no plan of memfit", "Give a file that Plan.save or memfit plan wrote")
        version = found.get("version")
        if not isinstance(version, int) or version < 1:
            raise PlanFormatError(path, f"is damaged: its version is {version!r}", _DAMAGED)
        if version > VERSION:
            raise PlanFormatError(path, f"has version {version}, this memfit knows versions up to {VERSION}", _NEWER)
        try:
            return cls(
                **_fields(found.get("asked"), ("gpu", "budget_bytes", "world_size")),
                recipe=_recipe(found.get("recipe")),
                checkpointing=_policy(found.get("checkpointing")),
                figures=PlanCost(**_fields(found.get("figures"), tuple(PlanCost.__dataclass_fields__))),
                model=_model(found.get("model")),
                means=ProgramMeans(**_fields(found.get("means", {}), ("alloc_conf", "loss_rows"))),
                assumptions=_sentences(found.get("assumptions", [])),
            )
        except (ConfigError, TypeError) as error:
            raise PlanFormatError(path, f"is damaged: {error}", _DAMAGED) from error


def _fields(found: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """What a part of the file says, of what this memfit knows: the same version may say more."""
    if not isinstance(found, dict):
        raise ConfigError(f"a part with {', '.join(known)} is missing")
    return {name: found[name] for name in known if name in found}


def _model(found: Any) -> PlannedModel | None:
    return None if found is None else PlannedModel(**_fields(found, ("kind", "num_parameters", "depths")))


def _recipe(found: Any) -> dict[str, Value] | None:
    if found is not None and not isinstance(found, dict):
        raise ConfigError("its recipe is no mapping of words")
    return found


def _policy(found: Any) -> CheckpointingPolicy | None:
    if found is None:
        return None
    if not isinstance(found, dict):
        raise ConfigError("its checkpointing is no mapping")
    return CheckpointingPolicy.from_json(found)


def _sentences(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(sentence, str) for sentence in found):
        raise ConfigError("its assumptions are no list of sentences")
    return tuple(found)
