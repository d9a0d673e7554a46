"""``memfit run``: an unmodified training script, on a GPU that is not there."""

from __future__ import annotations

import argparse
from pathlib import Path

from memfit.cli.outputs import check_output
from memfit.cli.predict import add_target, tell
from memfit.errors import ConfigError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "run",
        help="predict what a training script needs, without a GPU",
        description="Runs a script on a simulated GPU, stops it after some optimizer steps, and says whether it fits.",
    )
    parser.add_argument("--nproc", type=int, default=1, metavar="N", help="processes, as torchrun would start them; 1 by default")
    add_target(parser)
    parser.add_argument("--write", action="store_true", help="let the script write, delete and rename files as in a real run")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="the script to run: train.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the script")


def run(args: argparse.Namespace) -> int:
    from memfit.phantom.target import DEFAULT_TORCH
    from memfit.phantom.values.expected import Expected
    from memfit.predict import Prediction
    from memfit.predict.dry_run import harmlessly
    from memfit.predict.scripts import predict_script

    if not args.script.is_file():
        raise ConfigError(f"there is no script {args.script}")
    check_output(args.out, "--out")
    expected = Expected.parse(args.expected)

    def predict() -> Prediction:
        return predict_script(
            args.script,
            args.arguments,
            gpu=args.gpu,
            world_size=args.nproc,
            steps=args.steps,
            torch_version=args.torch_version or DEFAULT_TORCH,
            alloc_conf=args.alloc_conf,
            expected=expected,
        )

    prediction = predict() if args.write else harmlessly(predict)
    tell(prediction, args)
    return 0
