"""``memfit run``: an unmodified training script, on a GPU that is not there."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from memfit.cli.commands.predict import made_now, tell, tell_job
from memfit.cli.flags import (
    add_host_memory,
    add_json,
    add_options,
    add_output,
    add_ranks,
    read_options,
    read_ranks,
    read_world_size,
)
from memfit.cli.outputs import STDOUT, check_output, stdout_kept_clean, tell_ran_out, telling_lines
from memfit.plan.plan_file import Plan

_MADE_UP = "there are no data on a simulated GPU: losses and scores that the script prints are made up"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "run",
        help="predict what a training script needs, without a GPU",
        description="Write it in front of what you would type: memfit run train.py, memfit run torchrun --nproc-per-node 8 "
        "train.py, memfit run accelerate launch train.py. It runs the script on a simulated GPU to its end, and says "
        "whether it fits. Flags of memfit come first.",
        examples=(
            ("memfit run --gpu A100-80GB train.py --batch 16", "your script, as you would start it"),
            ("memfit run --gpu H100 torchrun --nproc-per-node 8 train.py", "the same on eight GPUs"),
            ("memfit run --gpu H100 --steps 3 --json accelerate launch train.py", "three steps, for a program"),
        ),
    )
    add_options(parser, launches=True)
    add_ranks(parser)
    add_host_memory(parser)
    parser.add_argument(
        "--max-seconds", type=float, metavar="S", default=300.0, help="stop the script after so long: 300 by default, 0 for never"
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan of memfit plan, applied to the script's model")
    add_output(parser, "the ledger", "run.memfit")
    add_json(parser)
    parser.add_argument("--write", action="store_true", help="let the script write, delete and rename files as in a real run")
    parser.add_argument(
        "--unprotected",
        action="store_true",
        help="run the script even where this system cannot keep it from changing files (macOS, Windows, some containers)",
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module and its arguments, in place of a script"
    )
    script = parser.add_argument("script", metavar="SCRIPT", help="the script or the launcher to run: train.py, torchrun, ...")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="their arguments")
    script.required = arguments.required = False  # -m takes their place


def run(args: argparse.Namespace) -> int:
    from memfit.plan.applying.programs import ProgramPlan
    from memfit.predict.limit import limited_first
    from memfit.predict.ranks import RankOutcome, predict_ranks
    from memfit.predict.scripts.dry_run import choose_keeper, in_dry_run
    from memfit.predict.scripts.launchers import read_command
    from memfit.predict.scripts.running import run_script
    from memfit.predict.scripts.stopping import Bounds

    words = ["-m", *args.module] if args.module is not None else [args.script, *args.arguments] if args.script else []
    job = read_command(words, read_world_size(args, None))
    bounds = Bounds(steps=args.steps, max_seconds=args.max_seconds or None)
    check_output(args.out, "--out")
    plan = None if args.plan is None else Plan.load(args.plan)
    if plan is not None:
        plan.check_for_programs()
    options = read_options(args, world_size=job.world.world_size, rank=job.world.rank if args.rank is None else args.rank)
    if plan is not None and not options.alloc_conf:
        options = replace(options, alloc_conf=plan.means.alloc_conf)
    ranks = read_ranks(args.ranks)
    keeper = None if args.write else choose_keeper(unprotected=args.unprotected)
    if keeper is not None:
        print(f"memfit: {keeper.before}", file=sys.stderr, flush=True)
    print(f"memfit: {_MADE_UP}", file=sys.stderr, flush=True)
    asked = {"script": " ".join(words), "gpu": options.gpu, "world_size": options.world_size}

    tell_progress = telling_lines()

    def predict_rank(rank: int, stage_outputs: dict[int, Any]) -> RankOutcome:
        def predict(is_limited: bool) -> RankOutcome:
            of_rank = replace(job, world=replace(job.world, rank=rank))
            with nullcontext() if plan is None else ProgramPlan(plan).applied():
                return run_script(of_rank, options, bounds, tell_progress, stage_outputs, is_limited=is_limited)

        if keeper is None:
            return limited_first(predict, tell_ran_out)
        return limited_first(lambda is_limited: in_dry_run(lambda: predict(is_limited), keeper), tell_ran_out)

    with stdout_kept_clean(wanted=args.json or args.out == STDOUT):
        if ranks is not None:
            found = predict_ranks(predict_rank, ranks, job.world.world_size, side_by_side=not args.write)
        else:
            outcome = predict_rank(options.rank, {})
    if ranks is not None:
        tell_job(found.about(asked, *made_now()), args)
    else:
        tell(outcome.prediction.about(asked, *made_now()), args)
    return 0
