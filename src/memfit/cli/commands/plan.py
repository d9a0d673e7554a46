"""``memfit plan``: the fastest way to train a model that fits."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from memfit.cli.flags import add_options, add_output, add_recipe, add_subject, read_common, read_words, read_world_size
from memfit.cli.outputs import STDOUT, check_output, stdout_console, write_output
from memfit.cli.progress import telling
from memfit.errors import ConfigError
from memfit.job.cell import SAFETY_MARGIN
from memfit.plan.search import PlanSearch, plan
from memfit.plan.search.candidate import Evaluated
from memfit.plan.search.space import CHANGES_TRAINING
from memfit.units import format_bytes
from memfit.views.html.plan import plan_page
from memfit.views.words.plan import how_to_use
from memfit.views.words.timing import format_seconds

_STOPPED = 130


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="find the fastest way to train a model that fits, without a GPU",
        description="Whatever you do not fix is searched: strategies, meshes, schedules, microbatches, checkpointing, compiling. "
        "What changes the training itself stays as it is, unless you allow it with --allow. A flag with several values between "
        "commas leaves the choice between those.",
        examples=(
            ("memfit plan --model llama3-8b --gpu H100 --world-size 8", "the fastest way that fits"),
            (
                "memfit plan --model llama3-8b --gpu 4090 --world-size 8 --allow optimizer,batch",
                "also with another optimizer or batch",
            ),
        ),
    )
    add_subject(parser, "your function that returns step(); every combination of the axes you give is a candidate")
    add_options(parser)
    parser.add_argument(
        "--global-batch", type=int, default=0, metavar="N", help="sequences in a step of all GPUs; one for each GPU by default"
    )
    parser.add_argument("--budget", metavar="SIZE", help="what the allocator may get of a GPU: 40GiB; by default all it has left")
    parser.add_argument(
        "--margin",
        type=float,
        default=SAFETY_MARGIN,
        metavar="SHARE",
        help=f"of that, what must stay free; {SAFETY_MARGIN} by default, as much as a prediction may be wrong",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="WHAT",
        help=f"may vary although it changes what is trained: {', '.join(CHANGES_TRAINING)}; can be given several times",
    )
    add_recipe(parser, "what to fix, or to choose between")
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
    parser.add_argument("--no-cache", action="store_true", help="predict everything again, and keep nothing for the next time")
    add_output(parser, "the plan, as JSON", None)
    parser.add_argument("--report", type=Path, metavar="FILE", help="where to write a page with the picture of time against memory")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    for path, flag in ((args.out, "--out"), (args.report, "--report")):
        if path is not None:
            check_output(path, flag)
    words = read_words(args)
    with telling("Searching") as tell:
        found = plan(
            args.function,
            model=args.model,
            hf=args.hf,
            gpu=args.gpu,
            world_size=read_world_size(args, 1),
            global_batch=args.global_batch,
            seq=_one_seq(words.pop("seq", [0])),
            budget=args.budget,
            margin=args.margin,
            allow=tuple(word for words in args.allow for word in words.split(",")),
            predictions=args.predictions,
            refine=args.refine,
            executor=args.executor,
            **read_common(args),
            cache=not args.no_cache,
            progress=lambda done, best: tell(done, None, _so_far(best)),
            **words,
        )
    _tell(found, args)
    if found.was_stopped:
        return _STOPPED
    return 0 if found.plan is not None else 1


def _one_seq(values: list[int]) -> int:
    if len(values) > 1:
        raise ConfigError("--seq takes one number: training with another length is another training")
    return values[0]


def _tell(found: PlanSearch, args: argparse.Namespace) -> None:
    if args.report is not None:
        write_output(args.report, plan_page(found).encode(), "--report")
    if args.out is not None and found.plan is not None:
        if args.out == STDOUT:
            print(json.dumps(found.plan.to_json(), indent=1))
        else:
            found.plan.save(args.out)
    if args.json:
        print(json.dumps(found.to_json()), file=sys.stderr if args.out == STDOUT else sys.stdout)
    else:
        console = stdout_console(args.out)
        console.print(found)
        if args.out not in (None, STDOUT) and found.plan is not None:
            console.print(f"Written to {args.out}: {how_to_use(found.plan, str(args.out))}", highlight=False)


def _so_far(best: Evaluated | None) -> str:
    if best is None or best.cell.figures is None:
        return "nothing fits so far"
    figures = best.cell.figures
    return f"best so far: {format_seconds(figures.step_seconds)} a step, {format_bytes(figures.smallest_fit)}"
