"""``memfit plan``: the fastest way to train a model that fits."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence

from memfit.cli.flags import (
    KEPT,
    add_cache,
    add_jobs,
    add_options,
    add_output,
    add_recipe,
    add_report,
    add_subject,
    read_common,
    read_words,
    read_world_size,
)
from memfit.cli.outputs import STDOUT, check_output, stdout_console, stdout_kept_clean, told_to, write_report
from memfit.cli.progress import telling
from memfit.errors import ConfigError
from memfit.job import PredictOptions
from memfit.job.cell import SAFETY_MARGIN
from memfit.plan.emit import TARGETS
from memfit.plan.search import PlanSearch, plan
from memfit.plan.search.candidate import Evaluated
from memfit.plan.search.space import CHANGES_TRAINING
from memfit.units import format_bytes
from memfit.views.html.results.plan import plan_page
from memfit.views.words.plan import describe_program_plan, first_answer, how_to_use
from memfit.views.words.timing import format_seconds

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3")
"""Words with which the command of a program begins, beside scripts."""

_STOPPED = 130


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="find the fastest way to train a model that fits, without a GPU",
        description="Whatever you do not fix is searched: strategies, meshes, schedules, microbatches, checkpointing, compiling. "
        "What changes the training itself stays as it is, unless you allow it with --allow. A flag with several values between "
        "commas leaves the choice between those. A training script is planned as it is: what it computes again. Its own arguments "
        "come behind --, or where memfit has no such flag.",
        examples=(
            ("memfit plan train.py --budget 40GiB --out plan.json", "what an unmodified script computes again to fit"),
            ("memfit plan --model llama3-8b --gpu H100 --world-size 8", "the fastest way that fits"),
            ("memfit plan --model llama3-8b --world-size 8 --emit torchtitan", "the same, written for torchtitan"),
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
        metavar="SHARE",
        help=f"of that, what must stay free, as much as a prediction may be wrong: {SAFETY_MARGIN} by default, 0.005 for a script",
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
        "--executor", default="", metavar="WHO", help="processes (of this machine, by default), dask:tcp://host:8786, or slurm"
    )
    add_jobs(parser)
    add_cache(parser)
    parser.add_argument(
        "--emit", choices=TARGETS, metavar="FOR", help=f"print what trains so, and how to start it: {', '.join(TARGETS)}"
    )
    add_output(parser, "the plan, as JSON", None)
    add_report(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def split_program(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words for memfit, and those of a script or launcher with its arguments; none where no program is planned.

    Behind a script, what memfit knows is memfit's, up to ``--``; behind a launcher everything is the launcher's.
    """
    start = next((place for place, word in enumerate(words) if word.endswith(".py") or word in LAUNCHERS), None)
    if start is None:
        return list(words), []
    before = [word for word in words[:start] if word != "--"]
    program, behind = words[start], list(words[start + 1 :])
    if not program.endswith(".py"):
        return before, [program, *behind]
    if "--" in behind:
        place = behind.index("--")
        return [*before, *behind[:place]], [program, *behind[place + 1 :]]
    _, own = _flags().parse_known_args(behind)
    known = list(behind)
    for word in own:
        known.remove(word)
    return [*before, *known], [program, *own]


def _flags() -> argparse.ArgumentParser:
    """A parser of this command's flags alone, which refuses no word."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--budget")
    parser.add_argument("--gpu")
    parser.add_argument("--world-size", "--nproc")
    parser.add_argument("--margin")
    parser.add_argument("--out", "-o")
    parser.add_argument("--json", action="store_true")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.emit and (args.json or args.out == STDOUT):
        raise ConfigError("--emit, --json and --out - each print what another program reads: use one of them")
    if args.program:
        return _plan_program(args)
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
            budget=args.budget,
            margin=SAFETY_MARGIN if args.margin is None else args.margin,
            allow=tuple(word for words in args.allow for word in words.split(",")),
            predictions=args.predictions,
            refine=args.refine,
            executor=args.executor,
            jobs=args.jobs,
            **read_common(args),
            cache=not args.no_cache,
            progress=lambda done, most, best: tell(done, most, _so_far(best)),
            first=lambda best: print(f"memfit: {first_answer(best)}", file=sys.stderr, flush=True),
            **words,
        )
    _tell(found, args)
    if found.was_stopped:
        print("memfit: stopped" if args.no_cache else f"memfit: stopped. {KEPT}", file=sys.stderr)
        return _STOPPED
    return 0 if found.plan is not None else 1


def _plan_program(args: argparse.Namespace) -> int:
    """A script, as it is: what it computes again."""
    from memfit.plan.checkpointing.api import MARGIN, plan_script
    from memfit.plan.checkpointing.runs import ScriptRun
    from memfit.predict.scripts.dry_run import choose_keeper
    from memfit.predict.scripts.launchers import read_command

    if args.out is not None:
        check_output(args.out, "--out")
    if args.emit:
        raise ConfigError("the plan of a script is trained by memfit train --plan, with nothing to write: leave out --emit")
    job = read_command(args.program, read_world_size(args, None))
    options = PredictOptions(
        gpu=args.gpu, world_size=job.world.world_size, rank=job.world.rank, budget=args.budget, **read_common(args)
    )
    keeper = choose_keeper()
    print(f"memfit: {keeper.before}", file=sys.stderr, flush=True)
    with stdout_kept_clean(wanted=True):
        found = plan_script(
            ScriptRun(job, options, keeper),
            margin=MARGIN if args.margin is None else args.margin,
            progress=lambda line: print(f"memfit: {line}", file=sys.stderr, flush=True),
        )
    if args.out == STDOUT or args.json:
        print(json.dumps(found.to_json(), indent=1))
    if args.out not in (None, STDOUT):
        found.save(args.out)
    if args.out == STDOUT or args.json:
        return 0
    console = stdout_console()
    console.print(describe_program_plan(found), highlight=False)
    where = str(args.out) if args.out is not None else "plan.json"
    written = f"Written to {where}" if args.out is not None else "Write it to a file with --out plan.json"
    command = shlex.join(args.program)
    console.print(f"{written}. To train with it: memfit train --plan {where} {command}", highlight=False)
    return 0


def _tell(found: PlanSearch, args: argparse.Namespace) -> None:
    write_report(args.report, lambda: plan_page(found))
    if args.out is not None and found.plan is not None:
        if args.out == STDOUT:
            print(json.dumps(found.plan.to_json(), indent=1))
        else:
            found.plan.save(args.out)
    if args.json:
        print(json.dumps(found.to_json()), file=told_to(args.out, args.report))
    else:
        console = stdout_console(STDOUT if args.emit else args.out, args.report)
        console.print(found)
        if args.emit and found.plan is not None:
            print(found.plan.emit(args.emit), end="")
        if args.out not in (None, STDOUT) and found.plan is not None:
            console.print(f"Written to {args.out}: {how_to_use(found.plan, str(args.out))}", highlight=False)


def _so_far(best: Evaluated | None) -> str:
    if best is None or best.cell.figures is None:
        return "nothing fits so far"
    figures = best.cell.figures
    return f"best so far: {format_seconds(figures.step_seconds)} a step, {format_bytes(figures.smallest_fit)}"
