"""``memfit.max_batch`` and ``memfit.max_seq``: for models by name, Hugging Face configs and functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from memfit.compare.cache import CellCache, open_cache
from memfit.errors import ConfigError, PredictionError
from memfit.job import Cell, Configuration, PredictOptions, Subject
from memfit.job.axes import read_axes
from memfit.job.recipe import Recipe
from memfit.job.subject import check_arguments
from memfit.largest.result import LargestFit
from memfit.largest.search import Attempt, find_largest, most_in_all
from memfit.plan.search.bounds import least_bytes
from memfit.workers.executors import Answer, Runner, open_runner

Progress = Callable[[int, int | None, int], None]
"""Told after every attempt: how many are done, how many there will be if that is known, and the largest number that fits so far."""

USUAL_MULTIPLE: Final = {"batch": 1, "seq": 128}
"""Lengths that are no multiple of a power of two are slower, and need memory of their own: few people train with them."""


def max_batch(
    function: str | Callable[..., Any] = "", *, model: str = "", hf: str | Path = "", gpu: str = "H200", **words: Any
) -> LargestFit:
    """The largest batch that fits: sequences per GPU and step.

    ::

        memfit.max_batch(model="llama3-8b", gpu="H100", world_size=8, checkpointing="full").value

    Takes the words of ``memfit.predict``, and ``multiple`` (the batch is a multiple of it), ``margin`` (the share of the memory
    that must stay free, 0 by default), ``jobs`` and ``cache`` of ``memfit.compare``, and ``progress``, which is told after every
    prediction how many are done, how many there will be (``None`` if unknown) and the largest number that fits so far. A function
    is called with ``batch=``; ``vary`` names another argument.
    """
    return find("batch", Subject.of(function, model, hf), {"gpu": gpu, **words})


def max_seq(
    function: str | Callable[..., Any] = "", *, model: str = "", hf: str | Path = "", gpu: str = "H200", **words: Any
) -> LargestFit:
    """The longest sequence that fits, in tokens: a multiple of 128 unless ``multiple`` says otherwise, and no longer than the
    model's context. Takes the same words as ``max_batch``; a function is called with ``seq=``."""
    return find("seq", Subject.of(function, model, hf), {"gpu": gpu, **words})


def find(axis: str, subject: Subject, words: Mapping[str, Any]) -> LargestFit:
    """The largest number of an axis that fits. ``words`` are those of ``max_batch``."""
    given = dict(words)
    options = PredictOptions(**{name: given.pop(name) for name in PredictOptions.__dataclass_fields__ if name in given})
    margin, jobs, cache, progress = (given.pop(name, usual) for name, usual in _ABOUT_THE_SEARCH.items())
    multiple = given.pop("multiple", 0)
    axis = given.pop("vary", "") or axis
    check(axis, given, multiple, margin)
    chosen = {name: values[0] for name, values in read_axes(given).items()}
    if subject.function:
        check_arguments(subject.function, (axis, *chosen))

    def asked_for(number: int) -> Configuration:
        return Configuration.of(subject, {**chosen, axis: number}, options)

    multiple, ceiling = (multiple or 1, None) if subject.function else _limits(axis, multiple, chosen, subject)
    first, room = asked_for(multiple), int(options.capacity * (1 - margin))
    bound = _bound(asked_for, multiple, ceiling, room) if subject.model else None
    with open_runner(None, jobs) as runner:
        limit = bound if bound is not None else ceiling

        def told(tried: Sequence[Attempt]) -> None:
            best = max((each.number for each in tried if each.fits), default=0)
            progress(len(tried), most_in_all(tried, limit, multiple), best)

        predictions = _Predictions(asked_for, runner, open_cache(cache), room, told)
        tried = find_largest(predictions.ask, room, multiple=multiple, ceiling=limit, lanes=runner.num_lanes)
    refuse_failure(tried)
    return LargestFit(
        axis=axis,
        asked={name: value for name, value in first.inputs.items() if name != axis},
        capacity=options.capacity,
        room=room,
        multiple=multiple,
        ceiling=limit,
        is_bounded=bound is not None,
        tried=tuple(tried),
        assumptions=predictions.assumptions,
    )


_ABOUT_THE_SEARCH: Final[dict[str, Any]] = {"margin": 0.0, "jobs": None, "cache": True, "progress": lambda done, most, best: None}


def check(axis: str, given: Mapping[str, Any], multiple: int, margin: float) -> None:
    """Raises ``ConfigError`` if the number that is looked for is given, or several values of another word."""
    if axis in given:
        raise ConfigError(f"the largest {axis} is looked for: leave --{axis} out")
    for name, values in read_axes(given).items():
        if len(values) > 1:
            raise ConfigError(f"this is about one {name}, not {len(values)}: ask for each by itself")
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 0:
        raise ConfigError(f"multiple takes a whole number of at least 1, not {multiple!r}")
    if not 0 <= margin < 1:
        raise ConfigError(f"margin is the share of the memory that stays free, at least 0 and less than 1, not {margin}")


def refuse_failure(tried: Sequence[Attempt]) -> None:
    """Raises ``PredictionError`` if the smallest number could not be predicted: then nothing is known."""
    smallest = min(tried, key=lambda each: each.number)
    if smallest.error:
        raise PredictionError(f"{smallest.number} could not be predicted: {smallest.error}")


def _limits(axis: str, multiple: int, chosen: Mapping[str, Any], subject: Subject) -> tuple[int, int | None]:
    """The multiple of which a recipe's number must be, and the largest that it takes."""
    usual = Recipe(model=subject.model, hf=subject.hf, **chosen)
    if axis == "seq":
        parts = usual.tp * (2 * usual.cp if usual.cp > 1 else 1)
        return math.lcm(multiple or min(USUAL_MULTIPLE["seq"], usual.context), parts), usual.context
    return math.lcm(multiple or 1, max(1, usual.microbatches if "microbatches" in chosen else usual.pp)), None


def _bound(asked_for: Callable[[int], Configuration], multiple: int, ceiling: int | None, room: int) -> int | None:
    """The largest number of a model by name that may fit by its bound, which grows with the number; ``None`` if even the ceiling
    may."""

    def may_fit(count: int) -> bool:
        return least_bytes(asked_for(count * multiple)) <= room

    last = ceiling // multiple if ceiling is not None else None
    low, high = 1, 2
    while (last is None or high <= last) and may_fit(high):
        low, high = high, 2 * high
    if last is not None and high > last:
        if last <= low or may_fit(last):
            return None
        high = last
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if may_fit(middle) else (low, middle)
    return low * multiple


class _Predictions:
    """Asks worker processes, and the cache before."""

    def __init__(
        self,
        asked_for: Callable[[int], Configuration],
        runner: Runner,
        known: CellCache | None,
        room: int,
        told: Callable[[Sequence[Attempt]], None],
    ) -> None:
        self._asked_for, self._runner, self._known, self._room, self._told = asked_for, runner, known, room, told
        self._tried: list[Attempt] = []
        self.assumptions: tuple[str, ...] = ()

    def ask(self, numbers: Sequence[int]) -> list[Attempt]:
        started = [(number, self._start(number)) for number in numbers]
        return [self._attempt(number, found) for number, found in started]

    def _start(self, number: int) -> Cell | tuple[Configuration, Future[Answer]]:
        asked = self._asked_for(number)
        figures = self._known.find(asked.to_json()) if self._known is not None else None
        if figures is not None:
            return Cell(configuration=asked, figures=figures, cached=True)
        return asked, self._runner.submit(asked.to_json())

    def _attempt(self, number: int, found: Cell | tuple[Configuration, Future[Answer]]) -> Attempt:
        if isinstance(found, tuple):
            asked, future = found
            answer = future.result()
            if self._known is not None and "figures" in answer:
                self._known.keep(asked.to_json(), answer)
            found = Cell.of(asked, answer)
        figures = found.figures
        if figures is None:
            made = Attempt(number=number, error=found.error)
        else:
            self.assumptions = tuple(dict.fromkeys((*self.assumptions, *figures.assumptions)))
            fits = figures.fits and figures.smallest_fit <= self._room
            made = Attempt(number=number, needed=figures.smallest_fit, fits=fits, step_seconds=figures.step_seconds)
        self._tried.append(made)
        self._told(self._tried)
        return made
