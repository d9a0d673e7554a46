"""``memfit compare``: many ways to train a model, side by side."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from memfit.cli.consoles import stdout_console
from memfit.cli.recipe_flags import add_recipe, add_subject, given, read_values
from memfit.compare import Cell, compare
from memfit.errors import ConfigError
from memfit.hardware import gpus


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="compare ways to train a model: which fit, without a GPU",
        description="Give several values with commas between them: every combination is predicted. The table says which fit, and "
        "which one to run. For a model without any such list, strategies and checkpointing are compared.",
    )
    add_subject(parser, "your function that returns step(); it is called with the axes you give, by name")
    parser.add_argument(
        "--gpu", default="H200", metavar="GPU,...", help=f"{', '.join(gpu.name for gpu in gpus())}; H200 by default"
    )
    parser.add_argument("--world-size", default="1", metavar="N,...", help="number of processes, one per GPU; 1 by default")
    add_recipe(parser, "what to vary, or to fix")
    parser.add_argument("--axis", action="append", default=[], metavar="NAME=A,B", help="any other argument of your function")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="training steps; 3 by default")
    parser.add_argument(
        "--torch-version",
        default="",
        metavar="VERSION",
        help="the version of torch whose kernels and allocator are used: 2.11+cu130, ...",
    )
    parser.add_argument("--alloc-conf", default="", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument("--jobs", type=int, metavar="N", help="predictions at a time; one per core by default")
    parser.add_argument("--no-cache", action="store_true", help="predict everything again, and keep nothing for the next time")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="for programs: a list of cells")
    shape.add_argument("--csv", action="store_true", help="for spreadsheets: one line per cell")


def run(args: argparse.Namespace) -> int:
    with _progress(kept=not args.no_cache) as progress:
        comparison = compare(
            args.function,
            model=args.model,
            hf=args.hf,
            gpu=read_values("gpu", args.gpu),
            world_size=read_values("world_size", args.world_size),
            steps=args.steps,
            torch_version=args.torch_version,
            alloc_conf=args.alloc_conf,
            jobs=args.jobs,
            cache=not args.no_cache,
            progress=progress,
            **given(args),
            **dict(map(axis_of, args.axis)),
        )
    if args.json:
        print(json.dumps(comparison.to_json()))
    elif args.csv:
        print(comparison.to_csv(), end="")
    else:
        stdout_console().print(comparison)
    return 0 if comparison.best is not None else 1


def axis_of(text: str) -> tuple[str, list[Any]]:
    """``layers=2,4`` and ``fused=True,False``: Python's own values where they are such, words otherwise."""
    name, equals, values = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"cannot read --axis {text!r}: write it like layers=2,4")
    return name, [_value(word) for word in read_values(name, values)]


def _value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


@contextmanager
def _progress(*, kept: bool) -> Iterator[Any]:
    """A bar on the terminal, for people who watch; what is done is kept, also when it is stopped."""
    console = Console(stderr=True)
    columns = (TextColumn("Predicting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)

        def tell(cell: Cell, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        try:
            yield tell
        except KeyboardInterrupt:
            if kept:
                bar.console.print("memfit: stopped. What is done is kept: the same command continues from there.")
            raise
