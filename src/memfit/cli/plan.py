"""``memfit plan``: the fastest way to train a model that fits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from memfit.cli.compare import axis_of
from memfit.cli.consoles import stdout_console
from memfit.cli.outputs import check_output, write_output
from memfit.cli.recipe_flags import add_recipe, add_subject, given
from memfit.compare.recommendation import SURE
from memfit.errors import ConfigError
from memfit.hardware import gpus
from memfit.plan.search import PlanSearch, plan
from memfit.plan.search.candidate import Tried
from memfit.plan.search.space import CHANGES_TRAINING
from memfit.units import format_bytes
from memfit.views.html.plan import plan_page
from memfit.views.words.timing import format_seconds

_STOPPED = 130


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="find the fastest way to train a model that fits, without a GPU",
        description="Whatever you do not fix is searched: strategies, meshes, schedules, microbatches, checkpointing, compiling. "
        "What changes the training itself stays as it is, unless you allow it with --allow. A flag with several values between "
        "commas leaves the choice between those.",
    )
    add_subject(parser, "your function that returns step(); every combination of the axes you give is a candidate")
    parser.add_argument("--gpu", default="H200", help=f"one of {', '.join(gpu.name for gpu in gpus())}; H200 by default")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="number of GPUs; 1 by default")
    parser.add_argument(
        "--global-batch", type=int, default=0, metavar="N", help="sequences in a step of all GPUs; one for each GPU by default"
    )
    parser.add_argument("--budget", metavar="SIZE", help="what the allocator may get of a GPU: 40GiB; by default all it has left")
    parser.add_argument(
        "--margin",
        type=float,
        default=SURE,
        metavar="SHARE",
        help=f"of that, what must stay free; {SURE} by default, as much as a prediction may be wrong",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="WHAT",
        help=f"may vary although it changes what is trained: {', '.join(CHANGES_TRAINING)}; can be given several times",
    )
    add_recipe(parser, "what to fix, or to choose between")
    parser.add_argument("--axis", action="append", default=[], metavar="NAME=A,B", help="any other argument of your function")
    parser.add_argument(
        "--predictions",
        type=int,
        default=0,
        metavar="N",
        help="candidates to predict at most; 8 to 40 by default, fewer for larger models. The answer says how much faster the rest "
        "could be",
    )
    parser.add_argument(
        "--refine",
        action="store_true",
        help="decide operator by operator what the best configuration computes again; a function that does not fit gets that",
    )
    parser.add_argument(
        "--executor", default="", metavar="WHO", help="processes:8 (one per core by default), dask:tcp://host:8786, or slurm"
    )
    parser.add_argument(
        "--interconnect", default="", metavar="LINKS", help="how GPUs are linked: 8xH100-NVLink+400G; by default as usual"
    )
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="training steps of the answer; 3 by default")
    parser.add_argument("--torch-version", default="", metavar="VERSION", help="2.11+cu130, ...")
    parser.add_argument("--alloc-conf", default="", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument("--no-cache", action="store_true", help="predict everything again, and keep nothing for the next time")
    parser.add_argument("--out", "-o", type=Path, metavar="FILE", help="where to write the plan, as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="where to write a page with the picture of time against memory")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    for path, flag in ((args.out, "--out"), (args.report, "--report")):
        if path is not None:
            check_output(path, flag)
    with _progress() as progress:
        found = plan(
            args.function,
            model=args.model,
            hf=args.hf,
            gpu=args.gpu,
            world_size=args.world_size,
            global_batch=args.global_batch,
            seq=_one_seq(args),
            budget=args.budget,
            margin=args.margin,
            allow=tuple(word for words in args.allow for word in words.split(",")),
            predictions=args.predictions,
            refine=args.refine,
            executor=args.executor,
            torch_version=args.torch_version,
            alloc_conf=args.alloc_conf,
            interconnect=args.interconnect,
            steps=args.steps,
            cache=not args.no_cache,
            progress=progress,
            **_axes(args),
        )
    _tell(found, args)
    if found.was_stopped:
        return _STOPPED
    return 0 if found.plan is not None else 1


def _one_seq(args: argparse.Namespace) -> int:
    values = given(args).get("seq", [0])
    if len(values) > 1:
        raise ConfigError("--seq takes one number: training with another length is another training")
    return int(values[0])


def _axes(args: argparse.Namespace) -> dict[str, Any]:
    fixed = {name: values for name, values in given(args).items() if name != "seq"}
    return fixed | dict(map(axis_of, args.axis))


def _tell(found: PlanSearch, args: argparse.Namespace) -> None:
    if args.report is not None:
        write_output(args.report, plan_page(found).encode(), "--report")
    if args.out is not None and found.plan is not None:
        found.plan.save(args.out)
    if args.json:
        print(json.dumps(found.to_json()))
    else:
        console = stdout_console()
        console.print(found)
        if args.out is not None and found.plan is not None:
            console.print(f'Written to {args.out}: memfit.apply(model, "{args.out}") does it.', highlight=False)


@contextmanager
def _progress() -> Iterator[Any]:
    """Signs of life on the terminal, for people who watch."""
    columns = (SpinnerColumn(), TextColumn("{task.completed} predicted"), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("listing what is possible", total=None)

        def tell(done: int, best: Tried | None) -> None:
            bar.update(task, completed=done, description=_so_far(best))

        yield tell


def _so_far(best: Tried | None) -> str:
    if best is None or best.cell.figures is None:
        return "nothing fits so far"
    figures = best.cell.figures
    return f"best so far: {format_seconds(figures.step_seconds)} a step, {format_bytes(figures.smallest_fit)}"
