"""The largest number that a script takes: ``{}`` in its command line stands for it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from memfit.errors import ConfigError, MemfitError
from memfit.job import PredictOptions
from memfit.largest.api import Progress, check, refuse_failure
from memfit.largest.result import LargestFit
from memfit.largest.search import Attempt, find_largest, most_in_all
from memfit.overlay.state import Keeper
from memfit.predict.result import Prediction
from memfit.predict.scripts.dry_run import in_dry_run
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds

PLACE: Final = "{}"


def check_place(words: Sequence[str], axis: str) -> None:
    """Raises ``ConfigError`` where nothing says which number varies."""
    if not any(PLACE in word for word in words):
        raise ConfigError(
            f"which argument of {shlex.join(words)} is the {axis}? Write {PLACE} in its place, as in train.py --batch-size {PLACE}"
        )


def largest_of_script(
    words: Sequence[str],
    options: PredictOptions,
    keeper: Keeper,
    progress: Progress,
    *,
    axis: str,
    multiple: int = 1,
    margin: float = 0.0,
    ceiling: int | None = None,
) -> LargestFit:
    """Runs a program with one number after another in place of ``{}``, each time for as many steps as the options say, in a child
    process that changes no file."""
    check(axis, {}, multiple, margin)
    capacity, assumptions, done = 0, dict[str, None](), list[Attempt]()

    def ask(numbers: Sequence[int]) -> list[Attempt]:
        return [attempt(number) for number in numbers]

    def attempt(number: int) -> Attempt:
        nonlocal capacity
        try:
            found = _predict([word.replace(PLACE, str(number)) for word in words], options, keeper)
        except MemfitError as error:
            made = Attempt(number=number, error=(str(error).strip().splitlines() or [type(error).__name__])[-1])
        else:
            verdict = found.verdict_alone
            capacity = verdict.capacity
            assumptions.update(dict.fromkeys(found.assumptions))
            fits = found.fits and verdict.smallest_fit <= int(capacity * (1 - margin))
            made = Attempt(number=number, needed=verdict.smallest_fit, fits=fits, step_seconds=found.step_seconds or 0.0)
        done.append(made)
        best = max((each.number for each in done if each.fits), default=0)
        progress(len(done), most_in_all(done, ceiling, multiple), best)
        return made

    tried = find_largest(ask, int(options.capacity * (1 - margin)), multiple=multiple, ceiling=ceiling)
    refuse_failure(tried)
    return LargestFit(
        axis=axis,
        asked={"script": shlex.join(words), "gpu": options.gpu, "world_size": options.world_size},
        capacity=capacity,
        room=int(capacity * (1 - margin)),
        multiple=multiple,
        ceiling=ceiling,
        tried=tuple(tried),
        assumptions=tuple(assumptions),
    )


def _predict(words: Sequence[str], options: PredictOptions, keeper: Keeper) -> Prediction:
    job = read_command(list(words), options.world_size if options.world_size > 1 else None)
    return in_dry_run(lambda: run_script(job, options, Bounds(steps=options.steps)).prediction, keeper)
