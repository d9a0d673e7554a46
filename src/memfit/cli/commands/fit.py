"""``memfit fit``: does a run fit on a GPU, and what would help if it does not?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from memfit.allocator import Requests, Verdict, judge, load_requests, parse_alloc_conf
from memfit.allocator.settings import DEFAULT_TORCH_VERSION, NEWEST, OLDEST, version_text
from memfit.cli.flags import add_file, known_gpus
from memfit.cli.outputs import stdout_console, working
from memfit.hardware import find_gpu
from memfit.views.escaping import printable
from memfit.views.verdicts import verdict_sections


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="say whether a recorded run fits on a GPU",
        description="Replays a run through CUDA's caching allocator: what it reserves, the least memory it completes in, and "
        "whether a GPU has that much.",
        examples=(
            ("memfit fit run.memfit --gpu L40S", "would this run fit on another GPU?"),
            (
                "memfit fit snapshot.pickle --gpu H100 --alloc-conf expandable_segments:True",
                "a snapshot of PyTorch's, with other settings",
            ),
        ),
    )
    add_file(parser, "a ledger, an allocator trace (.npz) or a PyTorch memory snapshot")
    parser.add_argument("--gpu", required=True, help=f"the kind of GPU: {known_gpus()}")
    parser.add_argument(
        "--alloc-conf", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF; by default what FILE was recorded with"
    )
    parser.add_argument(
        "--torch-version",
        metavar="VERSION",
        help=f"the version of torch whose allocator is used, {version_text(OLDEST)} to {version_text(NEWEST)}; "
        f"by default the one in FILE, or {DEFAULT_TORCH_VERSION}",
    )
    parser.add_argument(
        "--process-groups",
        type=int,
        metavar="N",
        help="number of NCCL process groups; by default 1 if FILE is one of several ranks",
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    gpu = find_gpu(args.gpu)
    with working(f"Replaying {args.file.name}"):
        requests = load_requests(args.file)
        conf = requests.alloc_conf if args.alloc_conf is None else args.alloc_conf
        settings = parse_alloc_conf(conf, args.torch_version or requests.torch_version or DEFAULT_TORCH_VERSION)
        verdict = judge(requests, gpu, settings, num_process_groups=args.process_groups)
    if args.json:
        print(json.dumps({"file": str(args.file)} | verdict.to_json()))
    else:
        console = stdout_console()
        info = None if requests.ledger is None else requests.ledger.info
        console.print(_heading(args.file, requests, verdict, conf), *verdict_sections(verdict, console, info), sep="\n")
    return 0


def _heading(path: Path, requests: Requests, verdict: Verdict, conf: str) -> RenderableType:
    facts = (
        f"{requests.source} of {requests.num_events:,} events, torch {verdict.settings.torch_version}, {conf or 'default settings'}"
    )
    return Group(Text(printable(str(path)), style="bold"), Text(printable(facts), style="dim"))
