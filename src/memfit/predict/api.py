"""``memfit.predict``: predicts a run without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch

from memfit.errors import ConfigError, ScriptExitError, StepFailedError
from memfit.job import Configuration, PredictOptions, Subject
from memfit.job.configuration import one_configuration, refuse_longest
from memfit.job.options import Ranks
from memfit.phantom.distributed.environment import RankInfo
from memfit.phantom.distributed.pipelines import Neighbours, predict_with_scout
from memfit.phantom.world import refuse_a_second
from memfit.predict.blame import advise, users_traceback
from memfit.predict.ranks import JobPrediction, PredictRank, RankOutcome, predict_ranks
from memfit.predict.result import Prediction
from memfit.predict.session import PhantomSession
from memfit.regular import is_regular
from memfit.workers.forking import TooLateToForkError, has_a_gpu_to_spare, import_before_forking, in_a_child
from memfit.workers.lanes import CAN_FORK

Step = Callable[[], Any]

Progress = Callable[[int, int | None, str], None]
"""``progress(parts that are done, parts in all, the part that was done last)``."""


@overload
def predict(
    build: Callable[..., Step] | str = ...,
    *,
    model: str = ...,
    hf: str | Path = ...,
    gpu: str = ...,
    world_size: int = ...,
    rank: int = ...,
    steps: int = ...,
    torch_version: str = ...,
    alloc_conf: str = ...,
    expected: Mapping[str, float] | None = ...,
    interconnect: str = ...,
    ranks: None = ...,
    progress: Progress | None = ...,
    **words: Any,
) -> Prediction: ...
@overload
def predict(
    build: Callable[..., Step] | str = ...,
    *,
    model: str = ...,
    hf: str | Path = ...,
    gpu: str = ...,
    world_size: int = ...,
    rank: int = ...,
    steps: int = ...,
    torch_version: str = ...,
    alloc_conf: str = ...,
    expected: Mapping[str, float] | None = ...,
    interconnect: str = ...,
    ranks: Ranks,
    progress: Progress | None = ...,
    **words: Any,
) -> JobPrediction: ...
def predict(
    build: Callable[..., Step] | str = "",
    *,
    model: str = "",
    hf: str | Path = "",
    gpu: str = "H200",
    world_size: int = 1,
    rank: int = 0,
    steps: int = 3,
    torch_version: str = "",
    alloc_conf: str = "",
    expected: Mapping[str, float] | None = None,
    interconnect: str = "",
    ranks: Ranks | None = None,
    progress: Progress | None = None,
    **words: Any,
) -> Prediction | JobPrediction:
    """Runs ``build`` and the step it returns on a GPU that is not there.

    ``build()`` makes model, optimizer and data on ``"cuda"`` and returns ``step()``, which does one training step. With a world
    size above one, ``torch.distributed.init_process_group("nccl")`` makes this process one rank of a fake world.

    ::

        def build():
            model = Transformer().cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            tokens = torch.randint(0, 32000, (8, 2048), device="cuda")

            def step():
                model(tokens).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        print(memfit.predict(build, gpu="H100"))

    In place of ``build`` there may be a model that memfit knows or a Hugging Face config, and how it is trained:
    ``memfit.predict(model="llama3-8b", world_size=8, strategy="full_shard")``; or ``"train.py:build"``, called with the same words.

    ``expected`` says what to assume where only data could tell: ``{"mask": 0.25}`` that a quarter of every mask is set,
    ``{"train.py:31": 128}`` how much that line asks for. ``Prediction.assumptions`` names the places.

    ``interconnect`` says how the GPUs are linked, for the time of collectives: ``8xH100-NVLink+400G``; empty is what nodes of such
    GPUs usually have, ``none`` lets communication take no time.

    ``progress(done, total, what)`` is told after each part: the model, and every step.

    ``ranks="all"`` predicts one of each kind of rank of the job, side by side, and gives a ``JobPrediction``; so do named ones,
    ``ranks=[0, 7]``.
    """
    options = PredictOptions(
        gpu=gpu,
        world_size=world_size,
        rank=rank,
        ranks=ranks,
        steps=steps,
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        expected=expected or {},
        interconnect=interconnect,
    )
    if callable(build):
        if model or hf or words:
            raise ConfigError("a function takes its words itself: give build alone, or model= or hf= with how it is trained")
        refuse_longest(options)
        asked = {"function": getattr(build, "__qualname__", type(build).__name__), "gpu": options.gpu, "world_size": world_size}
        return predict_build(build, options, progress).about(asked)
    return predict_configuration(one_configuration(Subject.of(build, model, hf), words, options), progress)


def predict_configuration(asked: Configuration, progress: Progress | None = None) -> Prediction | JobPrediction:
    """Predicts what is asked for. The ledger says what that was."""
    return predict_build(asked.builder(), asked.options, progress).about(asked.inputs)


def predict_build(
    build: Callable[[], Step], options: PredictOptions, progress: Progress | None = None
) -> Prediction | JobPrediction:
    """Predicts what ``build`` makes, with these options. Returns a ``JobPrediction`` if ``options.ranks`` is given. Ctrl-C ends it;
    what was seen until then is the prediction, which says so."""
    tell = progress or (lambda done, total, what: None)
    processes = RankInfo(world_size=options.world_size, rank=options.rank)
    refuse_a_second()  # while one is made, torch answers as if this machine had a GPU

    def predict_rank(rank: int, stage_outputs: Mapping[int, Any]) -> RankOutcome:
        def make(neighbours: Neighbours, scouted: int | None) -> RankOutcome:
            world = replace(processes, rank=rank if scouted is None else scouted)
            return _predict_steps(PhantomSession.prepare(options, world, neighbours), build, options.steps, tell)

        return predict_with_scout(make, stage_outputs)

    if options.ranks is not None:
        tell = lambda done, total, what: None  # noqa: E731  ranks are predicted side by side
        return _predict_job(predict_rank, options.ranks, options.world_size)
    if has_a_gpu_to_spare():
        return in_a_child(lambda: predict_rank(options.rank, {})).prediction
    return predict_rank(options.rank, {}).prediction


def _predict_job(predict_rank: PredictRank, ranks: Ranks, world_size: int) -> JobPrediction:
    """Predicts ranks in child processes. Where autograd cannot run in a child, ranks are predicted in turn."""
    if not CAN_FORK:
        return predict_ranks(predict_rank, ranks, world_size, side_by_side=False)

    def predict_and_judge(rank: int, stage_outputs: dict[int, Any]) -> RankOutcome:
        seen = predict_rank(rank, stage_outputs)
        seen.prediction.verdict_alone  # noqa: B018  worked out here, beside those of other ranks, it travels with the prediction
        return seen

    import_before_forking()
    try:
        return predict_ranks(lambda rank, outputs: in_a_child(lambda: predict_and_judge(rank, outputs)), ranks, world_size)
    except TooLateToForkError:
        if torch.accelerator.is_available():
            raise
        return predict_ranks(predict_rank, ranks, world_size, side_by_side=False)


def _predict_steps(session: PhantomSession, build: Callable[[], Step], steps: int, tell: Progress) -> RankOutcome:
    """Runs the steps. Regular steps run until one leaves everything as it found it; the rest are repeated in the ledger."""
    session.recording.leave_steps_to_caller()
    with session.running():
        step = calling("build", build)
        tell(1, steps + 1, "the model is built")
        if not callable(step):
            raise ConfigError(
                f"build() must return step(), a function that does one training step; it returned a {type(step).__name__}"
            )
        num_run, is_steady, stopped = 0, False, ""
        while num_run < steps and not is_steady:
            assumed = session.world.assumptions.counts()
            session.recording.mark_step()
            try:
                calling(f"step {num_run}", step)
            except KeyboardInterrupt:
                stopped = f"it was stopped in step {num_run} of {steps}, counted from 0"
                break
            session.look_around()
            num_run += 1
            tell(num_run + 1, steps + 1, f"step {num_run} of {steps}")
            # The first step is not like the others: it makes the optimizer's state, and compiles.
            is_steady = is_regular(step) and 1 < num_run < steps and session.last_step_left_all_as_it_was()
        num_events = session.builder.num_events
    prediction = session.repeated(steps - num_run, num_events, assumed) if is_steady else session.prediction(problem=stopped)
    return session.outcome(prediction, is_regular=is_regular(step))


def calling(what: str, function: Callable[[], Any]) -> Any:
    """Calls the user's code; raises ``StepFailedError`` with the user's traceback if it fails."""
    try:
        return function()
    except ScriptExitError:
        raise
    except Exception as error:
        raise StepFailedError(what, error, users_traceback(error), advise(error)) from error
