"""``memfit train``: a training command, run for real with a plan applied to its model."""

from __future__ import annotations

import argparse
from pathlib import Path

from memfit.errors import ConfigError
from memfit.plan.plan_file import Plan
from memfit.watch.launch import program_environment, python_command, run_command


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "train",
        help="run a training command for real, with a plan applied to its model",
        description="Runs the command as it is. When its model is first called, the plan is applied to it: what is computed again, "
        "kept and offloaded, and nothing else. Losses stay the same. A program whose model is not the planned one is stopped "
        "before its first backward pass. MEMFIT_PLAN=plan.json in the environment does the same.",
        examples=(("memfit train --plan plan.json torchrun --nproc-per-node 8 train.py", "train with a plan of memfit plan"),),
    )
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, as memfit plan --out wrote it")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="python train.py ..., torchrun ..., train.py ..."
    )


def run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ConfigError("nothing to run: write the command behind, like memfit train --plan plan.json python train.py")
    Plan.load(args.plan).check_for_programs()
    return run_command(python_command(words), program_environment({"MEMFIT_PLAN": str(args.plan.absolute())}))
