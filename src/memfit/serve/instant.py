"""An answer in milliseconds, marked as such: what was predicted before, or bounds that no run can be below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from memfit.choices import AXES, OPTIMIZERS
from memfit.compare.cache import CellCache
from memfit.errors import ConfigError
from memfit.job import CellResult, Configuration
from memfit.plan.search.bounds import least_bytes, least_seconds
from memfit.serve.questions import Question
from memfit.serve.wording import BAD, GOOD, OPEN, bars, categories, chosen_gpu, cost_line, head, step_line, tokens_of_a_gpu
from memfit.units import format_bytes
from memfit.views.words.recipe import in_words

_NOTICED: Final = 0.98
"""A change that saves less is not worth a line."""
_RANK: Final = 16
"""Of the LoRA adapters that are offered."""
_MOST_WAYS: Final = 6
_FEWEST_WAYS: Final = 3
"""So many of them, where none is enough by itself."""


def instant_answer(question: Question, cache: CellCache | None) -> dict[str, Any]:
    """From the cache, or bounds of a model by name; nothing but what it is about where there is neither."""
    asked = question.configuration
    if asked is not None and cache is not None and (figures := cache.find(asked.to_json())) is not None:
        return _from_figures(question, figures)
    if asked is not None and asked.subject.model:
        return _from_bounds(question, asked)
    words = (
        "There are no bounds for this: it is being predicted." if asked is not None else "The script is being run on a phantom GPU."
    )
    return head(question) | {"kind": "none", "tone": OPEN, "headline": words}


def _from_figures(question: Question, figures: CellResult) -> dict[str, Any]:
    spare, gpu = format_bytes(abs(figures.margin)), question.options.gpu
    headline = f"It fits on {gpu}, with {spare} to spare." if figures.fits else f"It does not fit on {gpu}: short by {spare}."
    return head(question) | {
        "kind": "cached",
        "tone": GOOD if figures.fits else BAD,
        "headline": headline,
        "gpus": bars(figures.smallest_fit, _communicators(question), is_bound=False, wanted=gpu),
        "categories": categories(figures.breakdown),
        "time": [step_line(figures.step_seconds, figures.tokens_per_second)],
        "cost": cost_line(question, figures.tokens_per_second),
        "ways": [] if figures.fits else [*ways_to_fit(question)],
    }


def _from_bounds(question: Question, asked: Configuration) -> dict[str, Any]:
    gpu, least, seconds = chosen_gpu(question), least_bytes(asked), least_seconds(asked)
    capacity = gpu.capacity(*_communicators(question))
    may_fit = least <= capacity
    words = f"at least {format_bytes(least)} of the {format_bytes(capacity)} that PyTorch can get"
    tokens = tokens_of_a_gpu(question) / seconds if seconds else 0.0
    return head(question) | {
        "kind": "bound",
        "tone": OPEN if may_fit else BAD,
        "headline": f"It may fit on {gpu.name}: {words}." if may_fit else f"It cannot fit on {gpu.name}: {words}.",
        "gpus": bars(least, _communicators(question), is_bound=True, wanted=gpu.name),
        "time": [step_line(seconds, tokens, is_bound=True)],
        "cost": "",
        "ways": [] if may_fit else [*ways_to_fit(question)],
    }


def _communicators(question: Question) -> tuple[int, int]:
    return int(question.options.world_size > 1), 0


# -- what makes it fit -------------------------------------------------------------------------------------------------------------


def ways_to_fit(question: Question) -> list[dict[str, Any]]:
    """One change each that may fit by its bound; where none may, those that help most. Of models by name: only they have bounds."""
    asked = question.configuration
    if asked is None or not asked.subject.model:
        return []
    now, room = least_bytes(asked), chosen_gpu(question).capacity(*_communicators(question))
    found = []
    for change in _changes(asked):
        try:
            changed = _changed(question, asked, change)
            least = least_bytes(changed)
        except ConfigError:
            continue  # it cannot be combined with the rest
        if least < _NOTICED * now:
            words = ", ".join(in_words(name, value) for name, value in change.items())
            fits = "may fit" if least <= room else "still cannot fit"
            way = {"text": f"{words}: at least {format_bytes(least)}, {fits}", "change": change, "mayFit": least <= room}
            found.append((least > room, least, way))
    may_fit = [each for each in found if not each[0]]
    return [way for _, _, way in sorted(may_fit or found, key=lambda each: each[:2])[: _MOST_WAYS if may_fit else _FEWEST_WAYS]]


def _changes(asked: Configuration) -> Iterator[dict[str, Any]]:
    recipe = asked.recipe
    yield from ({"checkpointing": name} for name in AXES["checkpointing"].choices or () if name != recipe.checkpointing)
    if recipe.batch > 1:
        yield {"batch": recipe.batch // 2}
    if recipe.seq > 512:
        yield {"seq": recipe.seq // 2}
    yield from ({"optimizer": row.name} for row in OPTIMIZERS.values() if row.name != recipe.optimizer)
    if recipe.precision != "bf16":
        yield {"precision": "bf16"}
    if not recipe.lora:
        yield {"lora": _RANK}
    elif recipe.quantize == "none":
        yield {"quantize": "nf4"}
    if asked.world_size > 1 and recipe.offload == "none":
        yield {"offload": "params"}
    if recipe.strategy not in ("", "full_shard") and not recipe.is_parallel:
        yield {"strategy": "full_shard"}
    yield {"world_size": 2 * asked.world_size}


def _changed(question: Question, asked: Configuration, change: dict[str, Any]) -> Configuration:
    options = replace(question.options, world_size=change.get("world_size", asked.world_size))
    words = dict(question.words) | {name: value for name, value in change.items() if name != "world_size"}
    return Configuration.of(asked.subject, words, options)
