"""A whole program, run in the phantom world as its launcher would run it, and stopped when its memory has settled."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from memfit.errors import PredictionError, RanOutError, ScriptExitError, StepFailedError
from memfit.job import PredictOptions
from memfit.overlay import in_force
from memfit.phantom.distributed.pipelines import Neighbours, predict_with_scout
from memfit.predict.api import calling
from memfit.predict.ranks import RankOutcome
from memfit.predict.run.known_calls import WrittenDownWronglyError
from memfit.predict.scripts.launchers import Job, Program, console_script
from memfit.predict.scripts.started_programs import AnotherProgram, StartedPrograms
from memfit.predict.scripts.stopping import Bounds, StopWatch
from memfit.predict.session import PhantomSession
from memfit.torch_compat.memory_history import alloc_conf_of_environment
from memfit.torch_compat.patches import Patches

_MOST_PROGRAMS: Final = 5

Progress = Callable[[str], None]


def run_script(
    job: Job,
    options: PredictOptions,
    bounds: Bounds | None = None,
    progress: Progress = lambda line: None,
    stage_outputs: Mapping[int, Any] | None = None,
    *,
    is_limited: bool = False,
) -> RankOutcome:
    """Runs a program as its launcher would, without a GPU, to its end. ``progress`` is told where it is.

    ``stage_outputs`` is what is known of a pipeline's stages from other ranks. How many processes there are and which one is
    predicted is the job's to say, and how many steps, that of the bounds. With ``is_limited``, memory runs out where the GPU's
    does; raises ``RanOutError`` for a run that does not survive it.
    """
    for _ in range(_MOST_PROGRAMS):
        make = partial(_predict_program, job, options, bounds or Bounds(), progress, is_limited)
        try:
            return predict_with_scout(make, stage_outputs)
        except WrittenDownWronglyError:
            bounds = replace(bounds or Bounds(), runs_all=True)
        except AnotherProgram as started:
            world = job.world if started.is_same_process and not started.job.world.has_launcher else started.job.world
            job = replace(started.job, world=world, notes=(*job.notes, *started.job.notes))
    raise PredictionError(f"{job.program.name} starts a program that starts a program, and so on: name the training script itself")


def _predict_program(
    job: Job,
    options: PredictOptions,
    bounds: Bounds,
    progress: Progress,
    is_limited: bool,
    neighbours: Neighbours,
    scouted: int | None,
) -> RankOutcome:
    world = job.world if scouted is None else replace(job.world, rank=scouted)
    session = PhantomSession.prepare(options, world, neighbours, is_limited=is_limited)
    if (keeper := in_force()) is not None:
        session.world.assumptions.add(keeper.after)
    watch = StopWatch(session.recording.recorder, bounds, session.world, progress, session.look_around, options.longest)
    started = StartedPrograms()
    with _in_environment(job), session.running(), _as_main(job.program), started.watching(), watch.watching():
        try:
            calling(job.program.name, lambda: _run(job.program))
        except (StepFailedError, ScriptExitError) as error:
            if not session.refusals:
                raise
            raise RanOutError(session.where_it_ran_out(), session.refusals[-1].failure.asked, _last_line(error)) from error
    if not options.alloc_conf:
        session.meter.configure(alloc_conf_of_environment())  # as the shell or the script itself has set it
    notes = (*job.notes, *watch.notes, *started.notes, *session.ran_out_notes())
    return session.outcome(session.prediction(notes=notes, problem=watch.missing(), covered=watch.covered()))


def _last_line(error: StepFailedError | ScriptExitError) -> str:
    return (error.users_traceback if isinstance(error, StepFailedError) else str(error)).strip().splitlines()[-1]


def _run(program: Program) -> None:
    try:
        if program.kind == "module":
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        elif program.kind == "console script":
            _call_entry_point(program.name)
        else:
            runpy.run_path(program.name, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise ScriptExitError(program.name, leaving.code) from leaving


def _call_entry_point(name: str) -> None:
    """As the small script that pip installs does it."""
    found = console_script(name)
    assert found is not None  # it was there when the command was read
    sys.exit(found.load()())


@contextmanager
def _in_environment(job: Job) -> Iterator[None]:
    """With what the launcher puts there; what the script itself sets stays."""
    patches = Patches("memfit run").because("what the launcher puts into the environment")
    for name, value in job.environment.items():
        patches.replace_item(os.environ, name, value)
    try:
        yield
    finally:
        patches.undo()


@contextmanager
def _as_main(program: Program) -> Iterator[None]:
    argv, path, whole = sys.argv, list(sys.path), sys.orig_argv
    sys.argv = [program.name, *program.arguments]
    sys.orig_argv = [sys.executable, *(["-m"] if program.kind == "module" else []), *sys.argv]
    sys.path.insert(0, _first_folder(program))
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.orig_argv = argv, path, whole


def _first_folder(program: Program) -> str:
    """Where Python looks for modules first."""
    if program.kind == "module":
        return os.getcwd()
    if program.kind == "console script":
        return os.path.dirname(sys.executable)
    return str(Path(program.name).resolve().parent)
