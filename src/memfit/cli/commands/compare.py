"""``memfit compare``: many ways to train a model, side by side."""

from __future__ import annotations

import argparse
import json
import sys

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
    read_values,
    read_words,
)
from memfit.cli.outputs import check_output, stdout_console, told_to, write_output, write_report
from memfit.cli.progress import telling
from memfit.compare import compare
from memfit.compare.api import STOPPED
from memfit.views.html.results.comparison import comparison_page
from memfit.views.words.comparison import cell_line

_STOPPED = 130


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="compare ways to train a model: which fit, without a GPU",
        description="Give several values with commas between them: every combination is predicted. The table says which fit, and "
        "which one to run. For a model without any such list, strategies and checkpointing are compared.",
        examples=(
            ("memfit compare --model llama3-8b --gpu H100 --world-size 8", "strategies and checkpointing, side by side"),
            ("memfit compare --model gpt2 --gpu T4,4090 --batch 4,8,16", "batch sizes on two kinds of GPUs"),
            ("memfit compare --model gpt2 --gpu T4 --batch 4,8 --report batches.html", "the same as a page, with a picture"),
            ("memfit compare --model llama3-8b,qwen3-8b --gpu 4090 --lora 16 --quantize none,nf4", "two models, LoRA and QLoRA"),
        ),
    )
    add_subject(parser, "your function that returns step(); it is called with the axes you give, by name")
    add_options(parser, several=True)
    add_recipe(parser, "what to vary, or to fix")
    add_jobs(parser)
    add_cache(parser)
    add_output(parser, "the cells: as CSV where the name ends in .csv, as JSON otherwise", None)
    add_report(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="for programs: a list of cells")
    shape.add_argument("--csv", action="store_true", help="for spreadsheets: one line per cell")


def run(args: argparse.Namespace) -> int:
    for path, flag in ((args.out, "--out"), (args.report, "--report")):
        if path is not None:
            check_output(path, flag)
    with telling("Comparing") as tell:
        comparison = compare(
            args.function,
            model=read_values("model", args.model) if args.model else "",
            hf=args.hf,
            gpu=read_values("gpu", args.gpu),
            world_size=read_values("world_size", args.world_size or "1"),
            **read_common(args),
            jobs=args.jobs,
            cache=not args.no_cache,
            progress=lambda cell, done, total: tell(done, total, cell_line(cell)),
            **read_words(args),
        )
    if args.out is not None:
        text = comparison.to_csv() if args.out.suffix == ".csv" else json.dumps(comparison.to_json())
        write_output(args.out, text.encode(), "--out")
    write_report(args.report, lambda: comparison_page(comparison))
    if args.json:
        print(json.dumps(comparison.to_json()), file=told_to(args.out, args.report))
    elif args.csv:
        print(comparison.to_csv(), end="", file=told_to(args.out, args.report))
    else:
        stdout_console(args.out, args.report).print(comparison)
    if any(cell.error == STOPPED for cell in comparison.cells):
        print("memfit: stopped" if args.no_cache else f"memfit: stopped. {KEPT}", file=sys.stderr)
        return _STOPPED
    return 0 if comparison.best is not None else 1
