"""``memfit report``: runs as one HTML file, to be opened from disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from memfit.cli.flags import known_gpus
from memfit.cli.outputs import RUN, STDOUT, check_output, working, write_output
from memfit.hardware import find_gpu
from memfit.ledger import Ledger
from memfit.units import format_bytes
from memfit.views.escaping import printable
from memfit.views.html import render_page, study
from memfit.views.html.runs import label_runs


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "report",
        help="draw runs as one HTML file",
        description="Draws where the memory of runs went, as one HTML file that needs no network and no server. Several ledgers, "
        "the ranks of a job or the cells of a comparison, share one page, on which you can switch between them.",
        examples=(
            ("memfit report run.memfit", "a page, report.html, to open in a browser"),
            ("memfit report rank0.memfit rank1.memfit -o job.html", "several runs on one page"),
        ),
    )
    parser.add_argument(
        "files", nargs="*", default=[RUN], type=Path, metavar="FILE", help=f"a ledger that memfit wrote; {RUN} by default"
    )
    parser.add_argument(
        "--out",
        "-o",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="where to write the page; - for the standard output; report.html by default",
    )
    parser.add_argument("--gpu", help=f"the kind of GPU: {known_gpus()}; by default the one that the ledger names")


def run(args: argparse.Namespace) -> int:
    gpu = None if args.gpu is None else find_gpu(args.gpu)
    check_output(args.out, "--out", may_be_stream=True)
    with working(f"Drawing {args.files[0].name}"):
        ledgers = [Ledger.load(path).check() for path in args.files]
        labels = label_runs(_names(args.files), ledgers)
        runs = [study(label, ledger, gpu) for label, ledger in zip(labels, ledgers, strict=True)]
        page = render_page(runs, args.files[0].name if len(runs) == 1 else f"{len(runs)} runs")
    write_output(args.out, page.encode(), "--out")
    if args.out != STDOUT:
        print(f"{printable(str(args.out))}: {format_bytes(args.out.stat().st_size)}, open it in a browser")
    return 0


def _names(paths: list[Path]) -> list[str]:
    """The files' names, or their whole paths where names alone would be the same."""
    names = [path.stem for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
