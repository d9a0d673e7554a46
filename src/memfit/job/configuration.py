"""The request for one prediction: what is trained, how, and on what.

::

    Subject ── a model or a config ──> Recipe, settled ───┐
       └────── a function ───────────> its arguments ─────┼──> Configuration ── builder(): what memfit.predict runs
    PredictOptions ───────────────────────────────────────┘        └─ inputs: the same as one flat object, for tables and JSON
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from memfit.errors import ConfigError
from memfit.hardware import find_gpu
from memfit.job.axes import read_axes
from memfit.job.options import PredictOptions
from memfit.job.recipe import RECIPE_FIELDS, Recipe
from memfit.job.subject import Subject, check_arguments, load_function

_ON_WHAT = ("gpu", "world_size")
"""Options that vary from cell to cell, and are shown with a recipe."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The request for one prediction."""

    subject: Subject
    settings: Recipe | Mapping[str, Any]
    """How a model is trained, with every default written out; or what a function is called with."""
    options: PredictOptions = field(default_factory=PredictOptions)

    @classmethod
    def of(cls, subject: Subject, words: Mapping[str, Any], options: PredictOptions) -> Configuration:
        """``words`` are a recipe's fields or a function's arguments. A recipe is settled for the GPUs in the options."""
        if subject.function:
            refuse_longest(options)
            return cls(subject=subject, settings=dict(words), options=options)
        recipe = Recipe(model=subject.model, hf=subject.hf, **words)
        check_longest(recipe, options.longest)
        settled = recipe.settled(options.world_size, has_bf16=has_bf16(options.gpu))
        return cls(subject=replace(subject, model=recipe.model), settings=settled, options=options)

    @property
    def gpu(self) -> str:
        return self.options.gpu

    @property
    def world_size(self) -> int:
        return self.options.world_size

    @property
    def recipe(self) -> Recipe:
        """The recipe of a model or a config. Must not be asked of a function."""
        assert isinstance(self.settings, Recipe), f"{self.subject.name} is a function"
        return self.settings

    @property
    def is_model(self) -> bool:
        """True for a model or a config, which have a recipe."""
        return isinstance(self.settings, Recipe)

    @functools.cached_property
    def inputs(self) -> dict[str, Any]:
        """Everything that varies from cell to cell, by name."""
        on_what = {name: getattr(self.options, name) for name in _ON_WHAT}
        if not isinstance(self.settings, Recipe):
            return self.subject.inputs | on_what | dict(self.settings)
        plain = {name: getattr(self.settings, name) for name in RECIPE_FIELDS if name not in ("model", "hf")}
        return self.subject.inputs | on_what | plain

    def builder(self) -> Callable[[], Any]:
        """What ``memfit.predict`` takes: it makes model, optimizer and data on ``"cuda"``, and returns the function that does one
        training step. A function's file is run here, before there is a phantom GPU."""
        if isinstance(self.settings, Recipe):
            return functools.partial(build_recipe, self.settings, self.options.longest)
        return functools.partial(load_function(self.subject.function), **self.settings)

    def with_recipe(self, **words: Any) -> Configuration:
        """A copy with other words in its recipe."""
        return replace(self, settings=replace(self.recipe, **words))

    def with_options(self, **options: Any) -> Configuration:
        """A copy with other options."""
        return replace(self, options=replace(self.options, **options))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for another process and for the name of a cached cell."""
        return {
            "inputs": self.inputs,
            "options": {name: value for name, value in asdict(self.options).items() if name not in _ON_WHAT},
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Configuration:
        """Reads the output of ``to_json``."""
        inputs = dict(plain["inputs"])
        on_what = {name: inputs.pop(name) for name in _ON_WHAT}
        subject = Subject(**{name: inputs.pop(name) for name in ("model", "hf", "function") if name in inputs})
        if not subject.function and isinstance(inputs["mesh"], list):  # JSON has no tuples
            inputs["mesh"] = tuple(inputs["mesh"])
        options = PredictOptions(**on_what, **plain["options"])
        settings = inputs if subject.function else Recipe(model=subject.model, hf=subject.hf, **inputs)
        return cls(subject=subject, settings=settings, options=options)


def one_configuration(subject: Subject, words: Mapping[str, Any], options: PredictOptions) -> Configuration:
    """Returns a configuration with one value for each word. Raises ``ConfigError`` for several values or an unknown word."""
    given = read_axes(words)
    for name, values in given.items():
        if len(values) > 1:
            raise ConfigError(f"a prediction is of one {name}, not of {len(values)}: memfit compare takes several")
    chosen = {name: values[0] for name, values in given.items()}
    if subject.function:
        check_arguments(subject.function, chosen)
    return Configuration.of(subject, chosen, options)


def build_recipe(recipe: Recipe, longest: int = 0) -> Callable[[], None]:
    """Makes model, optimizer and data on ``"cuda"``; returns the function that does one training step. The sequences of
    step ``LONGEST_STEP`` have ``longest`` tokens, if that is not 0."""
    if recipe.is_parallel:
        from memfit.job.parallel_training import build_parallel_step

        return build_parallel_step(recipe, longest)
    from memfit.job.training import build_step

    return build_step(recipe, longest)


def refuse_longest(options: PredictOptions) -> None:
    """Raises ``ConfigError`` if ``longest`` is given for a function, which makes its own batches."""
    if options.longest:
        raise ConfigError("your function makes its own batches: have one of them be the longest, or give it an argument (--axis)")


def check_longest(recipe: Recipe, longest: int) -> None:
    if not longest:
        return
    if longest < recipe.seq:
        raise ConfigError(f"the longest sequence cannot have {longest} tokens where usual ones have {recipe.seq}: say --seq")
    if recipe.pp > 1:
        raise ConfigError("the stages of a pipeline are made for one length: say --seq with the longest, and leave --longest out")
    replace(recipe, seq=longest)  # refuses what the model or its mesh cannot take


def has_bf16(gpu: str) -> bool:
    """True if the GPU computes in bfloat16."""
    return find_gpu(gpu).arch not in ("sm_70", "sm_75")
