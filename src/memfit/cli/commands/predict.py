"""``memfit predict``: a function that builds a training step, or a model by name, on a GPU that is not there."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from memfit.cli.flags import (
    add_host_memory,
    add_json,
    add_options,
    add_output,
    add_ranks,
    add_recipe,
    add_subject,
    read_options,
    read_ranks,
    read_subject,
    read_words,
)
from memfit.cli.outputs import STDOUT, check_output, stdout_console, stdout_kept_clean, write_ledger
from memfit.cli.progress import telling
from memfit.errors import ConfigError, StepFailedError
from memfit.job.configuration import one_configuration
from memfit.views.escaping import printable
from memfit.views.words.recipe import recipe_line
from memfit.views.words.timing import format_seconds, time_json

if TYPE_CHECKING:
    from memfit.job import Recipe
    from memfit.predict.ranks import JobPrediction
    from memfit.predict.result import Prediction


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "predict",
        help="predict what a training step needs, without a GPU",
        description="Calls your function that returns a training step, or makes a step for a model by name, runs it on a simulated "
        "GPU, and says whether it fits.",
        examples=(
            (
                "memfit predict --model llama3-8b --gpu H100 --world-size 8 --checkpointing full",
                "Llama-3 8B on eight H100s, with FSDP",
            ),
            (
                "memfit predict --hf ./my-model --gpu 4090 --batch 2 --seq 1024",
                "any Hugging Face model that you have: a folder, a config.json, or a name in its cache",
            ),
            ("memfit predict train.py:build --gpu H200 --axis width=1024", "a function of your own, with an argument"),
        ),
    )
    add_subject(parser, "a function that returns step(); it is called with those of the flags below that you give, by name")
    add_options(parser)
    add_ranks(parser)
    add_host_memory(parser)
    add_recipe(parser, "how a model by name is trained")
    add_output(parser, "the ledger", "run.memfit")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    check_output(args.out, "--out")
    asked = one_configuration(read_subject(args), read_words(args), read_options(args, ranks=read_ranks(args.ranks)))
    recipe = asked.recipe if asked.is_model and asked.recipe.pp > 1 else None
    if recipe is not None and args.ranks is None and args.rank is None:
        asked = asked.with_options(ranks="all")  # the stages of a pipeline need different memory

    from memfit.predict.api import predict_configuration  # torch, which takes seconds: mistakes are told before
    from memfit.predict.ranks import JobPrediction
    from memfit.workers.forking import GPU_IS_LOST

    with _mistakes_in_a_line(), warnings.catch_warnings(), stdout_kept_clean(wanted=args.json or args.out == STDOUT):
        warnings.filterwarnings("ignore", f".*{GPU_IS_LOST}")
        origin = made_now()
        with telling("Predicting") as progress, _arguments_of(asked.subject.function):
            found = predict_configuration(asked, progress).about(asked.inputs, *origin)
    if isinstance(found, JobPrediction):
        tell_job(found, args, _pipeline_seconds(found, recipe))
    else:
        tell(found, args)
    return 0


def _pipeline_seconds(job: JobPrediction, recipe: Recipe | None) -> float | None:
    """Seconds of a step of all stages; ``None`` where there is no pipeline."""
    from memfit.predict.step_time import job_step_seconds

    return job_step_seconds(job, recipe.schedule, recipe.pp, recipe.microbatches) if recipe is not None else None


@contextmanager
def _arguments_of(function: str) -> Iterator[None]:
    """A function whose file reads the command line finds none but its file's name: what was typed is memfit's."""
    words = sys.argv
    sys.argv = [function.rpartition(":")[0]] if function else words
    try:
        yield
    finally:
        sys.argv = words


@contextmanager
def _mistakes_in_a_line() -> Iterator[None]:
    """What memfit itself refused while building needs no traceback."""
    try:
        yield
    except StepFailedError as failed:
        if isinstance(failed.error, ConfigError):
            raise failed.error from failed
        raise


def tell(prediction: Prediction, args: argparse.Namespace) -> None:
    """Writes the ledger and says what came out, also where the disk has filled up in the meantime."""
    try:
        write_ledger(args.out, prediction.ledger)
    finally:
        _say(prediction, args)
    if not args.json and args.out != STDOUT:
        asks = "show" if prediction.verdict.fits else "explain"
        stdout_console().print(Text(f"The ledger is in {printable(str(args.out))}: memfit {asks} {printable(str(args.out))}"))


def tell_job(job: JobPrediction, args: argparse.Namespace, pipeline_seconds: float | None = None) -> None:
    """The worst rank's ledger is the one that was asked for; those of the others lie beside it."""
    paths = {
        kind.rank: args.out if kind is job.worst else args.out.with_name(f"{args.out.stem}.rank{kind.rank}{args.out.suffix}")
        for kind in job.kinds
    }
    for kind in job.kinds:
        if args.out != STDOUT or kind is job.worst:
            write_ledger(paths[kind.rank], kind.prediction.ledger)
    worst = job.worst.prediction
    if args.json:
        kinds = [kind.to_json() | {"ledger": str(paths[kind.rank])} for kind in job.kinds]
        more = {"world_size": job.world_size, "axes": dict(job.axes), "worst_rank": job.worst.rank, "ranks": kinds}
        more |= {"pipeline_step_seconds": pipeline_seconds} if pipeline_seconds else {}
        _print_json(_plain(worst, args) | {"assumptions": job.assumptions} | more, args)
        return
    console = stdout_console(args.out)
    console.print(job)
    if pipeline_seconds:
        console.print(Text(f"A step takes {format_seconds(pipeline_seconds)}, with what the stages wait for each other."))
    names = " ".join(printable(str(path)) for path in paths.values())
    if args.out != STDOUT:
        console.print(
            Text(
                f"The ledger of rank {job.worst.rank} is in {printable(str(args.out))}; all ranks on a page: memfit report {names}"
            )
        )


def made_now() -> tuple[str, str]:
    """The command line of this process, and the time."""
    command = shlex.join(["memfit", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("memfit", "__main__") else ""
    return command, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _plain(prediction: Prediction, args: argparse.Namespace) -> dict[str, Any]:
    """For programs."""
    more: dict[str, Any] = {"problem": prediction.problem, "assumptions": prediction.assumptions, "ledger": str(args.out)}
    info = prediction.ledger.info
    more |= {"asked": info.asked, "recipe": recipe_line(info.asked), "command": info.command, "made_at": info.made_at}
    more["breakdown"] = {category.name.lower(): size for category, size in prediction.breakdown.items()}
    more["num_steps"] = len(prediction.steps)
    more["covered"] = prediction.covered.to_json() if prediction.covered.is_known else None
    more["growth"] = prediction.growth and prediction.growth.to_json()
    more["host"] = prediction.host.to_json()
    more["other_devices"] = {name: verdict.to_json() for name, verdict in prediction.verdicts_of_others.items()}
    if prediction.problem and prediction.verdict.fits:
        more["fits"] = None  # not known: what was not seen may take more
    return prediction.verdict.to_json() | more | time_json(prediction)


def _say(prediction: Prediction, args: argparse.Namespace) -> None:
    if args.json:
        _print_json(_plain(prediction, args), args)
        return
    stdout_console(args.out).print(prediction)


def _print_json(found: dict[str, Any], args: argparse.Namespace) -> None:
    print(json.dumps(found), file=sys.stderr if args.out == STDOUT else sys.stdout)
