"""``memfit run``: an unmodified training script, on a GPU that is not there."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from memfit.cli.consoles import stdout_kept_clean, tell_progress, tell_ran_out
from memfit.cli.outputs import check_output
from memfit.cli.predict import add_ranks, add_target, read_ranks, tell, tell_job


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "run",
        help="predict what a training script needs, without a GPU",
        description="Write it in front of what you would type: memfit run train.py, memfit run torchrun --nproc-per-node 8 "
        "train.py, memfit run accelerate launch train.py. It runs the script on a simulated GPU until its memory has settled, and "
        "says whether it fits. Flags of memfit come first.",
    )
    parser.add_argument(
        "--nproc", type=int, metavar="N", help="processes, as torchrun would start them; not needed where a launcher says it"
    )
    add_ranks(parser)
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="training steps; by default 3, and more while memory still grows or an optimizer waits",
    )
    parser.add_argument("--max-seconds", type=float, metavar="S", help="stop the script after so long; never by default")
    add_target(parser)
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
    from memfit.phantom.target import DEFAULT_TORCH
    from memfit.phantom.values.expected import Expected
    from memfit.predict.limit import limited_first
    from memfit.predict.ranks import Seen, predict_ranks
    from memfit.predict.scripts.dry_run import choose_keeper, in_dry_run
    from memfit.predict.scripts.launchers import read_command
    from memfit.predict.scripts.running import see_script
    from memfit.predict.scripts.stopping import Bounds

    words = ["-m", *args.module] if args.module is not None else [args.script, *args.arguments] if args.script else []
    job = read_command(words, args.nproc)
    bounds = Bounds(steps=args.steps, max_seconds=args.max_seconds)
    check_output(args.out, "--out")
    expected = Expected.parse(args.expected)

    ranks = read_ranks(args.ranks)
    keeper = None if args.write else choose_keeper(unprotected=args.unprotected)
    if keeper is not None:
        print(f"memfit: {keeper.before}", file=sys.stderr, flush=True)

    def predict_rank(rank: int, told: dict[int, Any]) -> Seen:
        def predict(is_limited: bool) -> Seen:
            return see_script(
                replace(job, world=replace(job.world, rank=rank)),
                gpu=args.gpu,
                torch_version=args.torch_version or DEFAULT_TORCH,
                bounds=bounds,
                alloc_conf=args.alloc_conf,
                expected=expected,
                progress=tell_progress,
                told=told,
                interconnect=args.interconnect,
                is_limited=is_limited,
            )

        if keeper is None:
            return limited_first(predict, tell_ran_out)
        return limited_first(lambda is_limited: in_dry_run(lambda: predict(is_limited), keeper), tell_ran_out)

    with stdout_kept_clean(wanted=args.json):
        if ranks is not None:
            found = predict_ranks(predict_rank, ranks, job.world.world_size, side_by_side=not args.write)
        else:
            seen = predict_rank(job.world.rank if args.rank is None else args.rank, {})
    if ranks is not None:
        tell_job(found, args)
    else:
        tell(seen.prediction, args)
    return 0
