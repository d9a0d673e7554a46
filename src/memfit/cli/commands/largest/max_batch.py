"""``memfit max-batch``: the largest batch that fits."""

from __future__ import annotations

import argparse

from memfit.cli.commands.largest.asking import add_flags, find_and_tell, split_program

__all__ = ["add_parser", "run", "split_program"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "max-batch",
        help="find the largest batch that fits, without a GPU",
        description="Predicts one batch after another until one fits and the next does not. For a script, write {} where its "
        "command has the batch; flags of memfit come first.",
        examples=(
            ("memfit max-batch --model llama3-8b --gpu H100 --world-size 8", "sequences per GPU"),
            ("memfit max-batch --model llama3-8b --gpu 4090 --lora 16 --quantize nf4 --seq 2048", "of a QLoRA fine-tuning"),
            ("memfit max-batch --gpu 4090 train.py --batch-size {}", "of a script"),
            ("memfit max-batch train.py:build --gpu 4090", "of a function with an argument batch"),
        ),
    )
    add_flags(parser, "batch")


def run(args: argparse.Namespace) -> int:
    return find_and_tell("batch", args)
