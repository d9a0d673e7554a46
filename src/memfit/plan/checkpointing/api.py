"""``plan_checkpointing``: what to keep, offload and compute again, so that a training run fits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from memfit.errors import ConfigError, InfeasibleError
from memfit.hardware import find_gpu
from memfit.job import PredictOptions
from memfit.plan.applying.programs import SETTINGS
from memfit.plan.checkpointing.infeasible import infeasible
from memfit.plan.checkpointing.roots import Step
from memfit.plan.checkpointing.runs import FunctionRun, PlannedRun, ScriptRun
from memfit.plan.checkpointing.search import Search
from memfit.plan.checkpointing.trials import Trial, Trials
from memfit.plan.checkpointing.units import UnitKind, UnitRecorder
from memfit.plan.plan_file import Plan
from memfit.plan.policy import CheckpointingPolicy
from memfit.timing.basis import rates_of
from memfit.units import format_bytes

MARGIN: Final = 0.005
"""Of the budget, what is left free. Of real runs whose requests are all known, the least memory is within 0.4 % of the
prediction (``benchmarks/accuracy/allocator_truth.py``); what cuDNN chooses, and processes used before, are tried on top."""

WAITS_FOR_ITS_HOST: Final = (
    "the GPU waits for its host: how long a step takes depends on the machine, and is good to a fifth. The plan computes whole "
    "units again, which costs every host least"
)

EXPANDABLE: Final = "expandable_segments:True"
"""Costs nothing while a run lasts, and leaves next to no gaps."""

LOSS_ROWS: Final = 2048
"""Of logits, at a time: few enough to be small, and many enough for a GPU to be busy with."""

MAX_TRIALS: Final = 16
"""Predictions between the first few and the plan; few searches need more than ten."""

TIME_LIMIT: Final = 75.0
"""Seconds of a search. What people write by hand is predicted whatever the time, and the plan itself once more when it is over."""

TIE: Final = 0.01
"""Of a step: what people write by hand is taken where nothing is faster by more. Clocks, kernels and hosts differ by as much."""


def plan_checkpointing(
    build: Callable[[], Step],
    *,
    budget: str | int | None = None,
    gpu: str = "H200",
    world_size: int = 1,
    rank: int = 0,
    units: Sequence[str] | None = None,
    offload: bool = False,
    margin: float = MARGIN,
    steps: int = 3,
    max_trials: int = MAX_TRIALS,
    time_limit: float | None = TIME_LIMIT,
    torch_version: str = "",
    alloc_conf: str = "",
    expected: Mapping[str, float] | None = None,
    interconnect: str = "",
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The fastest way to checkpoint a training run such that it completes within a budget.

    ``build`` is what ``memfit.predict`` takes. ``budget`` is what the allocator may get, ``"40GiB"``; without one it is what the
    GPU has left beside its context. ``units`` names modules that are decided on, by default the repeated layers. ``offload``
    allows activations to wait in pinned memory of the host. ``margin`` is the part of the budget that is left free; convolutions
    and recurrent layers, whose workspaces cuDNN chooses, have more.

    Every figure of the plan is predicted for the plan as it is. ``InfeasibleError`` says the least that would fit. What people
    write by hand is always tried; when ``time_limit``, in seconds, is over, the best until then is the plan, and says so.
    ``None`` sets no limit.
    """
    options = PredictOptions(
        gpu=gpu,
        world_size=world_size,
        rank=rank,
        steps=steps,
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        expected=expected or {},
        interconnect=interconnect,
        budget=budget,
    )
    return plan_checkpointing_of(
        build,
        options,
        units=units,
        offload=offload,
        margin=margin,
        max_trials=max_trials,
        time_limit=time_limit,
        progress=progress,
    )


def plan_checkpointing_of(
    build: Callable[[], Step],
    options: PredictOptions,
    *,
    units: Sequence[str] | None = None,
    offload: bool = False,
    margin: float = MARGIN,
    max_trials: int = MAX_TRIALS,
    time_limit: float | None = TIME_LIMIT,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """What ``plan_checkpointing`` does; the budget is in the options."""
    return plan_run(
        FunctionRun(build, options),
        units=units,
        offload=offload,
        margin=margin,
        max_trials=max_trials,
        time_limit=time_limit,
        progress=progress,
    )


def plan_run(
    run: PlannedRun,
    *,
    units: Sequence[str] | None = None,
    offload: bool = False,
    margin: float = MARGIN,
    max_trials: int = MAX_TRIALS,
    time_limit: float | None = TIME_LIMIT,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The same for a function or a script; the budget is in the run's options."""
    options = run.options
    if not 0.0 <= margin < 1.0:
        raise ConfigError(f"margin={margin}: it must be in [0, 1), 0.02 for 2 %")
    target_gpu, budget_bytes = find_gpu(options.gpu), options.capacity
    told = progress or (lambda sentence: None)
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    trials = Trials(run, budget_bytes, margin)
    recorded = None
    if units is not None:  # a name that is wrong is told also where everything fits
        recorded = run.record(UnitRecorder(target_gpu, units))
    untouched = trials.run(None)
    told(f"as it is: {format_bytes(untouched.smallest_fit)}, {1e3 * untouched.seconds:.1f} ms a step")
    notes: list[str] = []
    simple: list[CheckpointingPolicy] = []
    if not untouched.fits:
        recorded = recorded or run.record(UnitRecorder(target_gpu, units))
        link = target_gpu.host_bandwidth * rates_of(target_gpu).transfers.pinned_share if offload else None
        search = Search(recorded.kinds, trials, max_trials=max_trials, deadline=deadline, link_bytes_per_second=link, progress=told)
        if not search.can_do_anything:
            raise infeasible(untouched)
        least = search.least()
        told(f"with as much as possible computed again: {format_bytes(least.smallest_fit)}, {1e3 * least.seconds:.1f} ms a step")
        if not least.completes:
            raise infeasible(min(least, untouched, key=lambda trial: trial.need))
        search.run(untouched)
        simple = search.simple_ways
        notes = [*recorded.notes, *_notes(recorded.kinds, untouched, search)]
    best, luck = best_of(trials, simple)
    return Plan(
        gpu=options.gpu,
        budget_bytes=budget_bytes,
        world_size=options.world_size,
        checkpointing=best.policy,
        figures=best.figures(),
        model=None if recorded is None else recorded.model,
        assumptions=(*best.prediction.assumptions, *notes, *luck),
    )


def plan_script(run: ScriptRun, *, margin: float = MARGIN, progress: Callable[[str], None] | None = None) -> Plan:
    """A script, as it is. The allocator's settings come first, because they cost nothing; then checkpointing, a loss that takes
    less memory, and both together, of which the fastest that fits is taken."""
    told = progress or (lambda sentence: None)
    trial = Trials(run, run.options.capacity, margin).run(None)
    told(f"as it is: {format_bytes(trial.smallest_fit)}, {1e3 * trial.seconds:.1f} ms a step")
    if not trial.fits and not run.options.alloc_conf and not any(os.environ.get(name) for name in SETTINGS):
        run, trial = _with_means(run, trial, margin, told, alloc_conf=EXPANDABLE)
    if trial.fits:
        return _planned(run, margin, told)
    in_rows, _ = _with_means(run, trial, margin, told, loss_rows=LOSS_ROWS)
    if in_rows is run:
        return _planned(run, margin, told)
    found: list[Plan] = []
    why = None
    for way in (run, in_rows):
        try:
            found.append(_planned(way, margin, told))
        except InfeasibleError as error:
            why = error
    if not found:
        assert why is not None
        raise why
    return min(found, key=lambda plan: plan.step_seconds or math.inf)


def _planned(run: ScriptRun, margin: float, told: Callable[[str], None]) -> Plan:
    return replace(plan_run(run, margin=margin, progress=told), means=run.means)


def _with_means(
    run: ScriptRun, before: Trial, margin: float, told: Callable[[str], None], **change: Any
) -> tuple[ScriptRun, Trial]:
    """The run with one thing more done to it, and what it takes; as it was where that does not help."""
    changed = replace(run, means=replace(run.means, **change))
    trial = Trials(changed, run.options.capacity, margin).run(None)
    what = ", ".join(f"{name}={value}" for name, value in change.items())
    told(f"with {what}: {format_bytes(trial.smallest_fit)}, {1e3 * trial.seconds:.1f} ms a step")
    return (changed, trial) if trial.need < before.need else (run, before)


def _notes(kinds: Sequence[UnitKind], untouched: Trial, search: Search) -> list[str]:
    notes = [f"{unit.name} is left as it is: {unit.refusal}" for kind in kinds for unit in kind.units if unit.refusal]
    if untouched.checkpoints_by_itself:
        notes.append("the model already uses checkpointing; the plan adds to it")
    if search.is_out_of_time:
        notes.append("the time was over before the search was: there may be a faster plan")
    return notes


def best_of(trials: Trials, simple: Sequence[CheckpointingPolicy] = ()) -> tuple[Trial, list[str]]:
    """The fastest that fits with every step run; where none does without giving memory back in every step, one that does.

    Choosing operators costs the host time that is not known well. So what computes whole units again is taken where the step waits
    for its host anyhow, and where a host that is slower at it would make the choice of operators the slower way. One of the
    ``simple`` policies is taken where it is as fast as the fastest, up to ``TIE``.
    """
    fitting = sorted((trial for trial in trials.all if trial.fits), key=lambda trial: (trial.seconds, trial.need))
    whole = [trial for trial in fitting if not trial.chooses_operators]
    notes: list[str] = []
    if whole and fitting[0] is not whole[0]:
        if whole[0].waits_for_its_host:
            fitting, notes = whole, [WAITS_FOR_ITS_HOST]
        elif trials.seconds_on_a_slow_host(fitting[0]) > whole[0].seconds:
            fitting = whole
    elif fitting and fitting[0].waits_for_its_host:
        notes = [WAITS_FOR_ITS_HOST]
    if fitting:
        longest = (1.0 + TIE) * fitting[0].seconds
        fitting.sort(key=lambda trial: not (trial.policy in simple and trial.seconds <= longest))
    for trial in fitting:
        exact = trials.with_every_step(trial)
        if exact.fits:
            return exact, notes
    note = "the allocator gives memory back to the GPU in every step to complete: that takes time which is not counted"
    return min((trial for trial in trials.all if trial.completes), key=lambda trial: trial.need), [note]
