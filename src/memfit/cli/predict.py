"""``memfit predict``: a function that builds a training step, on a GPU that is not there."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from memfit.cli.consoles import stdout_console, stdout_kept_clean
from memfit.cli.outputs import cannot_write, check_output
from memfit.cli.recipe_flags import add_recipe, add_subject, given
from memfit.compare.grid import Subject, read_axes, recipe_of
from memfit.compare.user_functions import build_of, check_arguments, locate
from memfit.errors import ConfigError, StepFailedError
from memfit.hardware import gpus
from memfit.models import Recipe
from memfit.views.escaping import printable
from memfit.views.words.timing import format_seconds, time_json

if TYPE_CHECKING:
    from memfit.predict import JobPrediction, Prediction


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "predict",
        help="predict what a training step needs, without a GPU",
        description="Calls your function that returns a training step, or makes a step for a model by name, runs it on a simulated "
        "GPU, and says whether it fits.",
    )
    add_subject(parser, "a function that returns step(); it is called with those of the flags below that you give, by name")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="number of processes, one per GPU; 1 by default")
    add_ranks(parser)
    add_recipe(parser, "how a model by name is trained")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="training steps; 3 by default")
    add_target(parser)


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Which processes of the job are predicted."""
    parser.add_argument("--rank", type=int, metavar="N", help="which of the processes to predict; by default the first of its node")
    parser.add_argument(
        "--ranks",
        metavar="RANKS",
        help="all: one of each kind of rank (pipeline stages, unequal shards), side by side, and the verdict of the worst; or "
        "numbers with commas between",
    )


def read_ranks(text: str | None) -> str | list[int] | None:
    """``all``, or ``0,7``."""
    if text is None or text == "all":
        return text
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"cannot read {text!r} as ranks: say all, or numbers with commas between") from None


def _ranks(args: argparse.Namespace) -> str | list[int] | None:
    """Those that were named; of a named model's pipeline all kinds, because its stages need different memory."""
    if args.ranks is not None or args.rank is not None or args.function:
        return read_ranks(args.ranks)
    return "all" if _recipe(args).pp > 1 else None


def _recipe(args: argparse.Namespace) -> Recipe:
    """How the named model is trained."""
    options = {name: _single(name, values) for name, values in read_axes(given(args)).items()}
    return recipe_of({"model": args.model, "hf": args.hf} | options)


def add_target(parser: argparse.ArgumentParser) -> None:
    """The flags that predicting a function and predicting a script share."""
    parser.add_argument("--gpu", default="H200", help=f"one of {', '.join(gpu.name for gpu in gpus())}; H200 by default")
    parser.add_argument(
        "--torch-version", metavar="VERSION", help="the version of torch whose kernels and allocator are used: 2.11+cu130, ..."
    )
    parser.add_argument(
        "--interconnect",
        default="",
        metavar="LINKS",
        help="how GPUs are linked, for the time of collectives: 8xH100-NVLink+400G; by default as nodes of such GPUs usually are; "
        "none: communication takes no time",
    )
    parser.add_argument("--alloc-conf", default="", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument(
        "--expected",
        action="append",
        default=[],
        metavar="WHAT=VALUE",
        help="a value to assume where it depends on data: mask=0.25, train.py:31=128; can be given several times",
    )
    parser.add_argument(
        "--out",
        "-o",
        type=Path,
        default=Path("run.memfit"),
        metavar="FILE",
        help="where to write the ledger; run.memfit by default",
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs: one JSON object; what your code prints goes to the standard error"
    )


def run(args: argparse.Namespace) -> int:
    from memfit.phantom.target import DEFAULT_TORCH
    from memfit.phantom.values.expected import Expected
    from memfit.predict import JobPrediction, predict
    from memfit.predict.child_process import GPU_IS_LOST

    check_output(args.out, "--out")
    with _mistakes_in_a_line(), warnings.catch_warnings(), stdout_kept_clean(wanted=args.json):
        warnings.filterwarnings("ignore", f".*{GPU_IS_LOST}")
        found = predict(
            _build(args),
            gpu=args.gpu,
            world_size=args.world_size,
            rank=args.rank or 0,
            steps=args.steps,
            torch_version=args.torch_version or DEFAULT_TORCH,
            alloc_conf=args.alloc_conf,
            expected=Expected.parse(args.expected).by_name,
            interconnect=args.interconnect,
            ranks=_ranks(args),
        )
    if isinstance(found, JobPrediction):
        tell_job(found, args, _pipeline_seconds(found, args))
    else:
        tell(found, args)
    return 0


def _pipeline_seconds(job: JobPrediction, args: argparse.Namespace) -> float | None:
    """A step of a named model's pipeline, with what its stages wait for each other; ``None`` for any other job."""
    from memfit.compare.job_time import job_step_seconds

    if args.function:
        return None
    recipe = _recipe(args)
    return job_step_seconds(job, recipe.schedule, recipe.pp, recipe.microbatches) if recipe.pp > 1 else None


@contextmanager
def _mistakes_in_a_line() -> Iterator[None]:
    """What memfit itself refused while building needs no traceback."""
    try:
        yield
    except StepFailedError as failed:
        if isinstance(failed.error, ConfigError):
            raise failed.error from failed
        raise


def _build(args: argparse.Namespace) -> Callable[[], Any]:
    """What is trained: a function, a model by name or a config, with the flags that were given."""
    subject = Subject(model=args.model, hf=args.hf, function=locate(args.function) if args.function else "")
    options = {name: _single(name, values) for name, values in read_axes(given(args)).items()}
    if subject.function:
        check_arguments(subject.function, options)
    return build_of(subject.inputs | options)


def _single(name: str, values: Sequence[Any]) -> Any:
    if len(values) > 1:
        raise ConfigError(f"a prediction is of one {name}, not of {len(values)}: memfit compare takes several")
    return values[0]


def tell(prediction: Prediction, args: argparse.Namespace) -> None:
    """Writes the ledger and says what came out, also where the disk has filled up in the meantime."""
    try:
        prediction.ledger.save(args.out)
    except OSError as error:
        _say(prediction, args)
        raise cannot_write(args.out, error, "--out") from error
    _say(prediction, args)
    if not args.json:
        stdout_console().print(Text(f"The ledger is in {printable(str(args.out))}: memfit show {printable(str(args.out))}"))


def tell_job(job: JobPrediction, args: argparse.Namespace, pipeline_seconds: float | None = None) -> None:
    """The worst rank's ledger is the one that was asked for; those of the others lie beside it."""
    paths = {
        kind.rank: args.out if kind is job.worst else args.out.with_name(f"{args.out.stem}.rank{kind.rank}{args.out.suffix}")
        for kind in job.kinds
    }
    for kind in job.kinds:
        try:
            kind.prediction.ledger.save(paths[kind.rank])
        except OSError as error:
            raise cannot_write(paths[kind.rank], error, "--out") from error
    worst = job.worst.prediction
    if args.json:
        kinds = [kind.to_json() | {"ledger": str(paths[kind.rank])} for kind in job.kinds]
        more = {"world_size": job.world_size, "axes": dict(job.axes), "worst_rank": job.worst.rank, "ranks": kinds}
        more |= {"pipeline_step_seconds": pipeline_seconds} if pipeline_seconds else {}
        print(json.dumps(_plain(worst, args) | {"assumptions": job.assumptions} | more))
        return
    console = stdout_console()
    console.print(job)
    if pipeline_seconds:
        console.print(Text(f"A step takes {format_seconds(pipeline_seconds)}, with what the stages wait for each other."))
    names = " ".join(printable(str(path)) for path in paths.values())
    console.print(
        Text(f"The ledger of rank {job.worst.rank} is in {printable(str(args.out))}; all ranks on a page: memfit report {names}")
    )


def _plain(prediction: Prediction, args: argparse.Namespace) -> dict[str, Any]:
    """For programs."""
    more: dict[str, Any] = {"problem": prediction.problem, "assumptions": prediction.assumptions, "ledger": str(args.out)}
    more["num_steps"] = len(prediction.steps)
    if prediction.problem and prediction.verdict.fits:
        more["fits"] = None  # not known: what was not seen may take more
    return prediction.verdict.to_json() | more | time_json(prediction)


def _say(prediction: Prediction, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(_plain(prediction, args)))
        return
    stdout_console().print(prediction)
