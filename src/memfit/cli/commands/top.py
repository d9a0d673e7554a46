"""``memfit top``: how a running job stands."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from rich.live import Live

from memfit.analysis.status import Status, find_status, worst_first
from memfit.cli.outputs import RUN, stdout_console
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.views.status import draw_status


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "top",
        help="show how a running job stands, until it ends",
        description="Shows what a watched job has in use, its peak so far, what is left, where that leads, and what was noticed. "
        "The job may be running or over; with several ranks, the one with the least room left comes first.",
        examples=(
            ("memfit top run.memfit", "how a watched job stands, every two seconds until it ends"),
            ("memfit top run.memfit --json", "once, for a program"),
        ),
    )
    parser.add_argument(
        "files",
        nargs="*",
        default=[RUN],
        type=Path,
        metavar="FILE",
        help=f"what memfit watch writes; with several ranks, all files are found; {RUN} by default",
    )
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="how often to look, 2 by default")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object for each rank, once")


def run(args: argparse.Namespace) -> int:
    if args.json:
        for status in _look(args.files):
            print(json.dumps(status.to_json()))
        return 0
    console = stdout_console()
    if args.once or not console.is_terminal:
        console.print(draw_status(_look(args.files), console))
        return 0
    found = _look(args.files)
    with Live(draw_status(found, console), console=console, auto_refresh=False) as live:
        while any(status.is_running for status in found):
            time.sleep(max(args.interval, 0.1))
            found = _look(args.files)
            live.update(draw_status(found, console), refresh=True)
    return 0


def _look(files: list[Path]) -> list[Status]:
    return worst_first(find_status(Ledger.load(path)) for file in files for path in files_of_job(file))


def files_of_job(file: Path) -> list[Path]:
    """The file itself, or those of the ranks that write beside it."""
    if file.exists():
        return [file]
    found = sorted(file.parent.glob(f"{file.stem}.rank*{file.suffix}"))
    if not found:
        raise ConfigError(f"there is no {file}, and no {file.stem}.rank0{file.suffix}: has the job used the GPU yet?")
    return found
