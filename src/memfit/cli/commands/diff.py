"""``memfit diff``: what two runs differ in."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.text import Text

from memfit.analysis.diff.runs import Diff, diff_ledgers
from memfit.cli.flags import add_report
from memfit.cli.outputs import check_output, stdout_console, told_to, working, write_report
from memfit.ledger import Ledger
from memfit.units import Allowance, format_bytes
from memfit.views.diff import show_diff
from memfit.views.escaping import printable
from memfit.views.html.results.difference import diff_page

_GROWN = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "diff",
        help="compare two runs: what grew, what shrank",
        description="Shows what grew and what shrank from one run to another, and what is behind it. With a predicted run and a "
        "measured one it shows where the prediction is wrong.",
        examples=(
            ("memfit diff before.memfit after.memfit", "what grew, and why"),
            ("memfit diff before.memfit after.memfit --report diff.html", "the same as a page, both runs over one another"),
            ("memfit diff golden.memfit run.memfit --fail-over 2%", "in CI: fails where memory grew by more"),
        ),
    )
    parser.add_argument("before", type=Path, metavar="BEFORE", help="a ledger that memfit wrote: run.memfit")
    parser.add_argument("after", type=Path, metavar="AFTER", help="another one")
    parser.add_argument(
        "--fail-over", metavar="AMOUNT", help="exit with 1 if the peak grew by more: 2%%, 500MiB; allocated or reserved"
    )
    add_report(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.report is not None:
        check_output(args.report, "--report")
    allowance = Allowance.parse(args.fail_over) if args.fail_over is not None else None
    with working(f"Comparing {args.before.name} with {args.after.name}"):
        ledgers = Ledger.load(args.before).check(), Ledger.load(args.after).check()
        diff = diff_ledgers(*ledgers)
    write_report(args.report, lambda: diff_page(diff, ledgers, (str(args.before), str(args.after))))
    if args.json:
        print(json.dumps({"files": [str(args.before), str(args.after)]} | diff.to_json()), file=told_to(args.report))
    else:
        console = stdout_console(args.report)
        console.print(Text(printable(f"{args.before} -> {args.after}"), style="bold"))
        show_diff(diff, console)
    return 0 if allowance is None else _judge(diff, allowance)


def _judge(diff: Diff, allowance: Allowance) -> int:
    grown = diff.grown_over(allowance)
    for figure in grown:
        amount = format_bytes(figure.change_bytes)
        print(f"memfit: {figure.name} grew by {amount}, which is over {printable(allowance.text)}", file=sys.stderr)
    return _GROWN if grown else 0
