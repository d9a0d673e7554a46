"""``memfit.plan``: the fastest way to train that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from memfit.compare.cache import open_cache
from memfit.errors import ConfigError, InfeasibleError
from memfit.job import Configuration, PredictOptions, Subject
from memfit.job.axes import combinations, read_axes
from memfit.job.cell import SAFETY_MARGIN
from memfit.job.states import state_bytes
from memfit.job.subject import check_arguments
from memfit.models import find_model
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.exploring import Exploration, Progress
from memfit.plan.search.result import Infeasible, PlanSearch, Unrefined
from memfit.plan.search.space import CHANGES_TRAINING, FACTORS_WITHOUT_BOUNDS, LARGER_FACTORS, Space, sequences_of, varying_axes
from memfit.workers.executors import open_runner

_LAYERS_TO_PREDICT = 1440
"""The most layers that a search predicts, unless the user says otherwise: some minutes of two cores. Most end before, when
nothing is left that could be faster."""

_FEWEST, _MOST = 8, 40
"""Candidates that are predicted at least and at most, then."""

_FOR_THE_FRONTIER = 4
"""Number of further configurations, to show what less memory costs and what more would buy."""

_TO_SETTLE = 1
"""Predictions with all steps and ranks, as a rule: of the best."""

_FIRST_LOOK = 256
"""Number of configurations whose bounds are known when the first answer is told: a second's work, and the plainest come first."""

First = Callable[[Candidate], None]
"""Told which configuration is most promising by bounds alone, before anything is predicted; again if a better one is found."""

_MOST_GPUS = 16
"""The largest multiple of the GPUs that is tried if nothing fits."""


def plan(
    function: str | Callable[..., Any] = "",
    *,
    model: str = "",
    hf: str | Path = "",
    gpu: str = "H200",
    world_size: int = 1,
    global_batch: int = 0,
    seq: int | Sequence[int] = 0,
    budget: int | str | None = None,
    margin: float = SAFETY_MARGIN,
    allow: Sequence[str] = (),
    predictions: int = 0,
    refine: bool = False,
    executor: str | Executor | None = None,
    jobs: int | None = None,
    torch_version: str = "",
    alloc_conf: str = "",
    expected: Mapping[str, float] | None = None,
    interconnect: str = "",
    steps: int = 3,
    cache: bool | Path = True,
    progress: Progress | None = None,
    first: First | None = None,
    **axes: Any,
) -> PlanSearch:
    """Searches for the fastest configuration that fits, on a machine without a GPU.

    ::

        found = memfit.plan(model="llama3-70b", gpu="H100-80GB", world_size=64, global_batch=512)
        found.best.inputs, found.best.figures.step_seconds      # the fastest that fits with margin
        found.frontier, found.gains                             # time against memory, and what more memory would buy
        found.plan.save("plan.json")

    For a model by name or a Hugging Face config, whatever is not given as a keyword is left open, but for what changes the training
    itself: ``allow=("precision", "optimizer", "float8", "batch")`` says what of that may vary. A function is called with the axes
    that are given, by name, ``seq`` among them: every combination of them is a candidate.

    Where a function does not fit as it is, what it computes again is decided operator by operator, to the budget; ``refine`` does
    the same for the best configuration of a model, on top of the search. ``found.plan`` then has a policy for ``memfit.apply``.

    ``budget`` is what the allocator may get, where that is less than the GPU has; ``margin`` is the share of it that must stay
    free. ``executor`` says who predicts: ``"processes:8"``, ``"dask:tcp://host:8786"``, ``"slurm"``, or a ``concurrent.futures``
    executor. ``first`` is told of the configuration of a model by name that is the most promising by its bounds, within seconds.
    """
    subject = Subject.of(function, model, hf)
    _check(margin, predictions, jobs)
    options = PredictOptions(
        gpu=gpu,
        world_size=world_size,
        steps=steps,
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        expected=expected or {},
        interconnect=interconnect,
        budget=budget,
    )
    room = int(options.capacity * (1 - margin))
    space = None
    if subject.function:
        _check_of_function(allow, global_batch)
        candidates = _of_function(subject, options, axes | ({"seq": seq} if seq else {}))
    else:
        if global_batch and "batch" in axes:
            raise ConfigError("batch and global_batch both say how many sequences a step has: leave one of them out")
        space = Space(subject=subject, options=options, global_batch=global_batch, seq=_one(seq), given=axes, allowed=tuple(allow))
        candidates = [*_bounded(space, room, first or (lambda candidate: None)), *larger_batches(space, room)]
    with open_runner(executor, jobs) as runner:
        exploration = Exploration(candidates, room, runner, open_cache(cache), progress or (lambda done, most, best: None))
        limit = predictions or usual_predictions(subject, len(candidates))
        exploration.most = min(limit, len(candidates)) + (0 if subject.function else _TO_SETTLE + _FOR_THE_FRONTIER)
        found = _search(exploration, space, subject, options, limit)
    return found if found.was_stopped else _with_checkpointing(found, candidates, options, margin, wanted=refine)


def _check_of_function(allow: Sequence[str], global_batch: int) -> None:
    """Refuses what says something of a recipe, which a function does not have."""
    for given, name in ((allow, "allow"), (global_batch, "global_batch")):
        if given:
            raise ConfigError(f"{name} has no effect on a function: it decides itself what is trained. Give it axes that it takes")


def _one(seq: int | Sequence[int]) -> int:
    lengths = [seq] if isinstance(seq, int) else [*seq]
    if len(lengths) != 1:
        raise ConfigError("seq takes one number: training with another length is another training")
    return lengths[0]


def _bounded(space: Space, room: int, first: First) -> list[Candidate]:
    """All configurations with their bounds. ``first`` is told of the most promising, when some are known and when all are."""
    found: list[Candidate] = []
    told: Candidate | None = None

    def tell() -> None:
        nonlocal told
        may_fit = (each for each in found if each.least_bytes <= room and each.least_seconds)
        best = min(may_fit, key=lambda each: each.least_seconds * each.usual_ratio, default=None)
        if best is not None and best is not told:
            told = best
            first(best)

    for asked in space.candidates():
        found.append(Candidate.of(asked))
        if len(found) == _FIRST_LOOK:
            tell()
    tell()
    return found


def larger_batches(space: Space, room: int) -> list[Candidate]:
    """Where the batch may vary: further ones, as long as one of them may fit by its bound."""
    found: list[Candidate] = []
    for factor in LARGER_FACTORS if space.subject.model else LARGER_FACTORS[:FACTORS_WITHOUT_BOUNDS]:
        try:
            larger = [Candidate.of(asked) for asked in space.candidates(factor=factor)] if space.has_larger_batches else []
        except ConfigError:
            continue  # this one cannot be shared out equally
        if not any(each.least_bytes <= room for each in larger):
            break
        found += larger
    return found


def usual_predictions(subject: Subject, num_candidates: int) -> int:
    """Of a function, all that the user has named; of a model, fewer the larger it is."""
    if not subject.model:
        return num_candidates if subject.function else _FEWEST
    return min(_MOST, max(_FEWEST, _LAYERS_TO_PREDICT // find_model(subject.model).layers))


def _check(margin: float, predictions: int, jobs: int | None) -> None:
    if not 0 <= margin < 1:
        raise ConfigError(f"margin is the share of the memory that stays free, at least 0 and less than 1, not {margin}")
    for name, value in {"predictions": predictions or 1, "jobs": 1 if jobs is None else jobs}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} takes a whole number of at least 1, not {value!r}")


def _of_function(subject: Subject, options: PredictOptions, axes: dict[str, Any]) -> list[Candidate]:
    """Every combination of what the user gave for the function's own arguments."""
    given = read_axes(axes)
    check_arguments(subject.function, given)
    return [Candidate.of(Configuration.of(subject, chosen, options)) for chosen in combinations(given)]


def _search(
    exploration: Exploration, space: Space | None, subject: Subject, options: PredictOptions, predictions: int
) -> PlanSearch:
    """The search, then the answer in full, then what is around it."""
    if (
        not subject.function or len(exploration.candidates) > 1
    ):  # one function alone is predicted where its checkpointing is planned
        exploration.explore(predictions)
    if exploration.best is None and space is not None and _may_offload(space) and not exploration.was_stopped:
        exploration.candidates += [Candidate.of(asked) for asked in space.candidates(offload=("params",))]
        exploration.explore(predictions)
    exploration.settle()
    infeasible = None
    if exploration.best is not None and not exploration.was_stopped:
        _look_around(exploration)
    elif exploration.best is None and not exploration.was_stopped and not subject.function:
        infeasible = _find_what_would_fit(exploration, space)
    best = exploration.best
    left = [replace(each, least_seconds=exploration.least_seconds(each)) for each in exploration.open_candidates()]
    too_large = sum(exploration.least_bytes(each) > exploration.room for each in exploration.candidates)
    tried = {id(each.candidate) for each in exploration.tried}
    num_untried = sum(
        id(each) not in tried and exploration.least_bytes(each) <= exploration.room for each in exploration.candidates
    )
    return PlanSearch(
        subject=subject,
        gpu=options.gpu,
        world_size=options.world_size,
        room=exploration.room,
        capacity=options.capacity,
        open_axes=varying_axes([each.asked for each in exploration.candidates]),
        tried=tuple(exploration.tried),
        best_tried=best,
        num_candidates=len(exploration.candidates),
        num_too_large=too_large,
        num_too_slow=num_untried - len(left),
        left=tuple(left),
        was_stopped=exploration.was_stopped,
        varied=tuple(name for name in CHANGES_TRAINING if space is not None and name in space.allowed),
        batches=_batches_of(exploration.candidates) if space is not None and space.has_larger_batches else (),
        infeasible=infeasible,
        space_assumptions=space.assumptions if space is not None else (),
    )


def _batches_of(candidates: Sequence[Candidate]) -> tuple[int, ...]:
    """Sequences in a step of all GPUs, each number once."""
    return tuple(sorted({sequences_of(each.asked) for each in candidates}))


def _with_checkpointing(
    found: PlanSearch, candidates: Sequence[Candidate], options: PredictOptions, margin: float, *, wanted: bool
) -> PlanSearch:
    """What is computed again, decided operator by operator: for a function that does not fit as it is, or where it is wanted."""
    if found.subject.function:
        if found.best is not None:
            return found
        asked = found.points[0].cell.configuration if found.points else candidates[0].asked
    elif not wanted or found.best is None:
        return found
    else:
        refined = _to_be_refined(found)
        if isinstance(refined, Unrefined):
            return replace(found, unrefined=refined)
        asked = refined
    # Planning runs the model, so that it imports torch: a search alone does not.
    from memfit.plan.checkpointing.api import plan_checkpointing_of

    try:
        planned = plan_checkpointing_of(asked.builder(), options, margin=margin)
    except InfeasibleError:
        if found.best is None:
            raise
        return replace(found, unrefined=Unrefined.DOES_NOT_FIT)
    best = found.best.figures.step_seconds if found.best is not None and found.best.figures is not None else float("inf")
    if planned.step_seconds is not None and planned.step_seconds > best:
        return replace(found, unrefined=Unrefined.IS_SLOWER)
    return replace(found, by_checkpointing=planned, checkpointed=asked)


def _to_be_refined(found: PlanSearch) -> Configuration | Unrefined:
    """The fastest configuration of a model that fits and in which operators can be decided on, with nothing computed again so
    far."""
    fitting = (point for point in found.points if point.fits)
    recipes = ((point, point.cell.configuration.recipe) for point in fitting)
    plain = (point for point, recipe in recipes if recipe.pp == 1 and recipe.microbatches <= 1)
    fastest = min(plain, key=lambda point: point.seconds, default=None)
    if fastest is None:
        return Unrefined.ALL_IN_PARTS
    asked = fastest.cell.configuration
    return Unrefined.NOTHING_AGAIN if asked.recipe.checkpointing == "none" else asked.with_recipe(checkpointing="none")


def _may_offload(space: Space) -> bool:
    return "offload" not in space.given and space.world_size > 1


def _look_around(exploration: Exploration) -> None:
    """What would be smaller and what would be faster, by what is known so far: the outline of all of it, and some of that
    predicted."""
    best = exploration.best
    if best is None or not best.candidate.least_bytes:
        return
    tried = {id(each.candidate) for each in exploration.tried}
    fresh = [each for each in exploration.candidates if id(each) not in tried and each.least_bytes <= 2 * exploration.room]
    needed = best.cell.smallest_fit or 0
    seconds = best.seconds or 0.0
    expected = {id(each): (exploration.expected_bytes(each), exploration.expected_seconds(each)) for each in fresh}
    smaller = _outline([each for each in fresh if expected[id(each)][0] < 0.9 * needed], expected)
    faster = _outline(
        [each for each in fresh if expected[id(each)][0] > exploration.room and expected[id(each)][1] < seconds], expected
    )
    exploration.predict([*_spread(smaller, _FOR_THE_FRONTIER // 2), *_spread(faster, _FOR_THE_FRONTIER // 2)])


def _outline(candidates: Sequence[Candidate], expected: dict[int, tuple[float, float]]) -> list[Candidate]:
    """Those that no other is expected to beat in both time and memory, the smallest first."""
    found: list[Candidate] = []
    for each in sorted(candidates, key=lambda each: expected[id(each)]):
        if not found or expected[id(each)][1] < expected[id(found[-1])][1]:
            found.append(each)
    return found


def _spread(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The fastest, and others at equal distances from it."""
    if len(candidates) <= count:
        return list(candidates)
    return [candidates[len(candidates) - 1 - number * (len(candidates) // count)] for number in range(count)]


def _find_what_would_fit(exploration: Exploration, space: Space | None) -> Infeasible:
    """The least that any candidate needs here, and how many GPUs would do."""
    tried = {id(each.candidate) for each in exploration.tried}
    smallest = sorted(exploration.candidates, key=lambda each: each.least_bytes)
    exploration.predict([each for each in smallest[:2] if id(each) not in tried])
    cells = [each.cell for each in exploration.tried if each.cell.figures is not None]
    closest = min(cells, key=lambda cell: cell.smallest_fit or 0, default=None)
    states = min((state_bytes(each.asked) for each in exploration.candidates if each.asked.subject.model), default=0)
    infeasible = Infeasible(closest=closest, least_state_bytes=states)
    factor = 2
    while space is not None and space.subject.model and factor <= _MOST_GPUS and not exploration.was_stopped:
        found = _smallest_on(exploration, space, factor)
        if found is not None and exploration.fits(found):
            return replace(infeasible, world_size=space.world_size * factor, on_more_gpus=found.cell)
        factor *= 2
    return infeasible


def _smallest_on(exploration: Exploration, space: Space, factor: int) -> Evaluated | None:
    """The candidate that needs least on ``factor`` times the GPUs, predicted; ``None`` where none could fit. A batch grows with
    them."""
    options = replace(space.options, world_size=space.world_size * factor)
    larger = replace(space, options=options, global_batch=space.global_batch * factor)
    smallest = min((Candidate.of(asked) for asked in larger.candidates()), key=lambda each: each.least_bytes)
    if smallest.least_bytes > exploration.room:
        return None
    elsewhere = Exploration([smallest], exploration.room, exploration.runner, exploration.known)
    elsewhere.predict([smallest])
    exploration.was_stopped = exploration.was_stopped or elsewhere.was_stopped
    return elsewhere.tried[-1] if elsewhere.tried else None
