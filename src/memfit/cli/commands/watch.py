"""``memfit watch``: a real run, recorded from start to end without a change to its script."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memfit.cli.flags import add_output
from memfit.cli.outputs import STDOUT, check_output
from memfit.errors import ConfigError
from memfit.watch.launch import python_command, run_watched
from memfit.watch.settings import WatchSettings, files_of_run, unused_name


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "watch",
        help="run a training command for real, and record where its GPU memory goes",
        description="Runs the command as it is, and records every block of GPU memory from the history of CUDA's allocator. "
        "Some steps are kept in full, of all others how full the GPU was: a job may last for weeks. However it ends, the ledger "
        "ends there. With torchrun and its like, every rank writes a file of its own.",
        examples=(
            ("memfit watch python train.py", "a real run, recorded in run.memfit"),
            ("memfit watch torchrun --nproc-per-node 8 train.py", "every rank in a file of its own"),
        ),
    )
    add_output(parser, "the ledger (a file that is there is never replaced: run-2.memfit then)", "run.memfit", "--save-to")
    parser.add_argument("--first", type=int, metavar="N", help="keep the first N steps in full, 3 by default")
    parser.add_argument("--every", type=int, metavar="N", help="keep every Nth step in full, 1000 by default")
    parser.add_argument("--against", type=Path, metavar="FILE", help="a predicted ledger: say while the run lasts where it differs")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="python train.py ..., torchrun ..., train.py ..."
    )


def run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ConfigError("nothing to watch: write the command behind, like memfit watch python train.py")
    if args.out == STDOUT:
        raise ConfigError("a run is recorded in a file, which survives whatever ends it: name one with --out")
    check_output(args.out, "--out")
    if args.against is not None and not args.against.is_file():
        raise ConfigError(
            f"there is no {args.against} to compare with: predict the run first, with memfit run --out {args.against}"
        )
    save_to = unused_name(args.out, lambda path: bool(files_of_run(path)))
    if save_to != args.out:
        print(f"memfit: {files_of_run(args.out)[0]} is there already: this run is recorded in {save_to}", file=sys.stderr)
    settings = WatchSettings(
        save_to=save_to.absolute(),
        first=args.first,
        every=args.every,
        against=args.against.absolute() if args.against is not None else None,
    )
    status = run_watched(python_command(words), settings)
    if not files_of_run(save_to):
        print("memfit: the command never used CUDA, so nothing was recorded", file=sys.stderr)
    return status
