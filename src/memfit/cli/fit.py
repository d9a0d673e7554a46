"""``memfit fit``: does a run fit on a GPU, and what would help if it does not?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.allocator import Requests, Verdict, judge, load_requests, parse_alloc_conf
from memfit.allocator.versions import DEFAULT_TORCH_VERSION
from memfit.hardware import GPUS, find_gpu
from memfit.units import format_bytes
from memfit.views.escaping import printable

PIPE_WIDTH = 120
BAR_WIDTH = 40


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="does a run fit on a GPU",
        description="Replays a run through CUDA's caching allocator: what it reserves, the least memory it completes in, and "
        "whether a GPU has that much.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a ledger, an allocator trace (.npz) or a PyTorch memory snapshot")
    parser.add_argument("--gpu", required=True, help=f"one of {', '.join(gpu.name for gpu in GPUS)}")
    parser.add_argument(
        "--alloc-conf", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF; by default what FILE was recorded with"
    )
    parser.add_argument(
        "--torch-version", metavar="VERSION", help="whose allocator: 2.6 to 2.15; by default the one in FILE, or 2.11"
    )
    parser.add_argument(
        "--process-groups", type=int, metavar="N", help="NCCL process groups; by default 1 if FILE is of several ranks"
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    gpu = find_gpu(args.gpu)
    stderr = Console(stderr=True, quiet=not sys.stderr.isatty())
    with stderr.status(Text(f"Replaying {printable(args.file.name)}")):
        requests = load_requests(args.file)
        conf = requests.alloc_conf if args.alloc_conf is None else args.alloc_conf
        settings = parse_alloc_conf(conf, args.torch_version or requests.torch_version or DEFAULT_TORCH_VERSION)
        verdict = judge(requests, gpu, settings, num_process_groups=args.process_groups)
    if args.json:
        print(json.dumps({"file": str(args.file)} | verdict.to_json()))
    else:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
        console.print(_heading(args.file, requests, verdict, conf), *verdict_sections(verdict, console), sep="\n")
    return 0


def _heading(path: Path, requests: Requests, verdict: Verdict, conf: str) -> RenderableType:
    facts = (
        f"{requests.source} of {requests.num_events:,} events, torch {verdict.settings.torch_version}, {conf or 'default settings'}"
    )
    return Group(Text(printable(str(path)), style="bold"), Text(printable(facts), style="dim"))


def verdict_sections(verdict: Verdict, console: Console) -> Iterator[RenderableType]:
    """A verdict, ready to be printed."""
    yield _answer(verdict)
    yield Padding(_ladder(verdict, "#" if console.options.ascii_only else "█"), (0, 2))
    yield from (Text(line) for line in _remarks(verdict))
    if verdict.alternatives:
        yield Padding(_alternatives(verdict), (0, 2))
    yield from (Text(f"note: {printable(warning)}", style="yellow") for warning in verdict.warnings)


def _answer(verdict: Verdict) -> Text:
    name, amount = verdict.gpu.name, format_bytes(abs(verdict.margin))
    if verdict.fits:
        return Text(f"It fits on {name}, with {amount} to spare.", style="bold green")
    if verdict.margin < 0:
        return Text(f"It does not fit on {name}: {amount} are missing.", style="bold red")
    return Text(f"It does not complete on {name}, although it would with less memory.", style="bold red")


def _ladder(verdict: Verdict, block: str) -> Table:
    """From what the program holds to what the GPU has."""
    rungs = [
        ("allocated", verdict.peak_allocated, verdict.where),
        ("smallest fit", verdict.smallest_fit, "the least that the allocator can get by with"),
        ("reserved", verdict.peak_reserved, "what it takes with memory to spare"),
        ("device", verdict.needed, _device_remark(verdict)),
        ("usable", verdict.gpu.usable_bytes, f"on {verdict.gpu.name}"),
    ]
    largest = max(size for _, size, _ in rungs) or 1
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for label, size, remark in rungs:
        table.add_row(
            label, format_bytes(size), Text(block * round(BAR_WIDTH * size / largest), style="cyan"), Text(remark, style="dim")
        )
    return table


def _device_remark(verdict: Verdict) -> str:
    parts = [f"smallest fit, {format_bytes(verdict.context)} for CUDA's context"]
    if verdict.communicators:
        parts.append(f"{format_bytes(verdict.communicators)} for NCCL")
    return ", ".join(parts)


def _remarks(verdict: Verdict) -> Iterator[str]:
    if verdict.fits and verdict.num_alloc_retries:
        given_back = format_bytes(verdict.given_back)
        yield f"On this GPU memory runs short {verdict.num_alloc_retries} times; giving {given_back} of cached memory back helps."
    if verdict.out_of_memory is not None:
        oom = verdict.out_of_memory
        held = f"{format_bytes(oom.allocated)} allocated and {format_bytes(oom.cached)} free in pieces"
        yield f"It runs out at event {oom.event:,}, asking for {format_bytes(oom.asked)} with {held}."
    if not verdict.fits:
        yield f"The least GPU that would do: {verdict.least_gpu.name if verdict.least_gpu else 'none that memfit knows'}."
    if verdict.largest:
        yield "At the peak: " + ", ".join(f"{label} {format_bytes(size)}" for label, size in verdict.largest[:4]) + "."


def _alternatives(verdict: Verdict) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    table.add_column("with")
    table.add_column("smallest fit", justify="right")
    table.add_column("reserved", justify="right")
    for need in verdict.alternatives:
        table.add_row(need.alloc_conf, format_bytes(need.smallest_fit), format_bytes(need.peak_reserved))
    return table
