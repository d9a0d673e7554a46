"""``memfit doctor``: what memfit finds on this machine, for a bug report."""

from __future__ import annotations

import argparse
import json

from memfit.diagnosis import diagnose
from memfit.hardware import find_gpu
from memfit.views.words.diagnosis import diagnosis_lines
from memfit.views.words.gpu_facts import gpu_fact_lines


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "what memfit finds on this machine, for a bug report"
    parser = subparsers.add_parser(
        "doctor",
        help=summary,
        description=f"Prints {summary}. The exit status is 1 if something is wrong.",
        examples=(("memfit doctor", "paste what it prints into a bug report"),),
    )
    parser.add_argument("--patches", action="store_true", help="everything that is replaced in torch while a run is predicted")
    parser.add_argument("--gpu", help="which facts about a GPU were measured, published or assumed, in place of all else")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.gpu:
        print("\n".join(gpu_fact_lines(find_gpu(args.gpu))))
        return 0
    found = diagnose()
    lines = [json.dumps(found.to_json())] if args.json else diagnosis_lines(found, every_patch=args.patches)
    print("\n".join(lines))
    return 0 if found.is_well else 1
