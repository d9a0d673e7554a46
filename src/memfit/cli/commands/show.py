"""``memfit show``: where the memory of a run went, on the terminal."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.text import Text

from memfit.analysis import Report, build_report
from memfit.cli.outputs import RUN, stdout_console, working
from memfit.ledger import Ledger
from memfit.views import show
from memfit.views.escaping import printable
from memfit.views.terminal import show_assumptions


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "where the memory of a run went"
    parser = subparsers.add_parser(
        "show",
        help=f"show {summary}",
        description=f"Shows {summary}, on the terminal.",
        examples=(
            ("memfit show run.memfit", "where the memory went"),
            ("memfit show --assumptions", "what the last prediction assumed"),
        ),
    )
    parser.add_argument("files", nargs="*", type=Path, default=[RUN], metavar="FILE", help=f"a ledger; {RUN} by default")
    parser.add_argument("--assumptions", action="store_true", help="what it rests on, sentence by sentence, and nothing else")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object per file, each on its own line")


def run(args: argparse.Namespace) -> int:
    console = stdout_console()
    for path in args.files:
        report = _read(path)
        if args.json:
            print(json.dumps({"file": str(path)} | report.to_json()))
        else:
            console.print(Text(printable(str(path)), style="bold"))
            (show_assumptions if args.assumptions else show)(report, console)
    return 0


def _read(path: Path) -> Report:
    """Loads and works out one file, with a sign of life for people who watch."""
    with working(f"Reading {path.name}"):
        return build_report(Ledger.load(path).check())
