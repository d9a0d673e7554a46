"""``memfit export``: a run, for other people's tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from memfit.cli.flags import add_file
from memfit.cli.outputs import STDOUT, check_output, working, write_output
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.exports import EXPORTS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a run as a file for other tools",
        description="Writes a ledger as a file for another tool: PyTorch's memory_viz page, Perfetto, speedscope, a spreadsheet.",
        examples=(
            ("memfit export run.memfit --to perfetto", "a trace for ui.perfetto.dev"),
            ("memfit export run.memfit --to csv -o -", "to the standard output"),
        ),
    )
    add_file(parser, "a ledger that memfit wrote")
    parser.add_argument("--to", required=True, choices=EXPORTS, metavar="FORMAT", help=f"one of {', '.join(EXPORTS)}")
    parser.add_argument(
        "--out", "-o", type=Path, metavar="OUT", help="where to write it; by default FILE with another ending: run.trace.json"
    )


def run(args: argparse.Namespace) -> int:
    export = EXPORTS[args.to]
    out = args.out or args.file.with_suffix(export.suffix)
    check_output(out, "--out", may_be_stream=True)
    if out.exists() and args.file.exists() and out.samefile(args.file):
        raise ConfigError(f"{out} is the ledger itself: name another file with --out")
    with working(f"Writing {out.name}"):
        data = export.write(Ledger.load(args.file).check())
    write_output(out, data, "--out")
    if out != STDOUT:
        print(f"{printable(str(out))} ({format_bytes(len(data))}): {export.use}")
    return 0
