"""``memfit max-seq``: the longest sequence that fits."""

from __future__ import annotations

import argparse

from memfit.cli.commands.largest.asking import add_flags, find_and_tell, split_program

__all__ = ["add_parser", "run", "split_program"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "max-seq",
        help="find the longest sequence that fits, without a GPU",
        description="Predicts one length after another until one fits and the next does not. For a script, write {} where its "
        "command has the length; flags of memfit come first.",
        examples=(
            ("memfit max-seq --model llama3.1-8b --gpu H100 --world-size 8 --checkpointing full", "tokens per sequence"),
            ("memfit max-seq --gpu 4090 train.py --max-length {}", "of a script"),
        ),
    )
    add_flags(parser, "seq")


def run(args: argparse.Namespace) -> int:
    return find_and_tell("seq", args)
