"""``memfit explain``: why a run ran out of memory, and what would have made it fit."""

from __future__ import annotations

import argparse
import json

from memfit.cli.flags import add_file, add_report, known_gpus
from memfit.cli.outputs import check_output, stdout_console, told_to, working, write_report
from memfit.explain import explain
from memfit.views.explanation import show_explanation
from memfit.views.html.results.explanation import explanation_page


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="explain why a run ran out of memory, and what would have made it fit",
        description="Shows what was in use when memory ran out, what was reserved but not usable, and tries settings, smaller "
        "micro-batches, checkpointing and offloading by replaying the run through CUDA's caching allocator.",
        examples=(
            ("memfit explain oom.memfit", "why it ran out of memory"),
            ("memfit explain run.memfit --gpu 4090", "what would make it fit on a smaller GPU"),
        ),
    )
    add_file(parser, "what memfit.track(..., on_oom=FILE) wrote, a PyTorch memory snapshot, or any ledger")
    parser.add_argument(
        "--gpu",
        help=f"the kind of GPU, in place of the one that FILE names: {known_gpus()}; needed where it names none",
    )
    add_report(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.report is not None:
        check_output(args.report, "--report")
    with working(f"Replaying {args.file.name}"):
        explanation = explain(args.file, args.gpu)
    write_report(args.report, lambda: explanation_page(explanation, str(args.file)))
    if args.json:
        print(json.dumps({"file": str(args.file)} | explanation.to_json()), file=told_to(args.report))
    else:
        show_explanation(explanation, stdout_console(args.report))
    return 0
