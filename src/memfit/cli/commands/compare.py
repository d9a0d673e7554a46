"""``memfit compare``: many ways to train a model, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from memfit.cli.flags import add_options, add_output, add_recipe, add_subject, read_common, read_values, read_words
from memfit.cli.outputs import check_output, stdout_console, write_output
from memfit.compare import compare
from memfit.job import Cell


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="compare ways to train a model: which fit, without a GPU",
        description="Give several values with commas between them: every combination is predicted. The table says which fit, and "
        "which one to run. For a model without any such list, strategies and checkpointing are compared.",
    )
    add_subject(parser, "your function that returns step(); it is called with the axes you give, by name")
    add_options(parser, several=True)
    add_recipe(parser, "what to vary, or to fix")
    parser.add_argument("--jobs", type=int, metavar="N", help="predictions at a time; one per core by default")
    parser.add_argument("--no-cache", action="store_true", help="predict everything again, and keep nothing for the next time")
    add_output(parser, "the cells: as CSV where the name ends in .csv, as JSON otherwise", None)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="for programs: a list of cells")
    shape.add_argument("--csv", action="store_true", help="for spreadsheets: one line per cell")


def run(args: argparse.Namespace) -> int:
    if args.out is not None:
        check_output(args.out, "--out")
    with _progress(kept=not args.no_cache) as progress:
        comparison = compare(
            args.function,
            model=args.model,
            hf=args.hf,
            gpu=read_values("gpu", args.gpu),
            world_size=read_values("world_size", args.world_size or "1"),
            **read_common(args),
            jobs=args.jobs,
            cache=not args.no_cache,
            progress=progress,
            **read_words(args),
        )
    if args.out is not None:
        text = comparison.to_csv() if args.out.suffix == ".csv" else json.dumps(comparison.to_json())
        write_output(args.out, text.encode(), "--out")
    if args.json:
        print(json.dumps(comparison.to_json()))
    elif args.csv:
        print(comparison.to_csv(), end="")
    else:
        stdout_console().print(comparison)
    return 0 if comparison.best is not None else 1


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
