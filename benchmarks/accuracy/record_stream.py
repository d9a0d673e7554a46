"""Memory that another stream still uses when it is freed (``record_stream``): when it can be used again decides what is reserved.

    python benchmarks/accuracy/record_stream.py            compares predictions with an H200, and writes results/record_stream.md
    python benchmarks/accuracy/record_stream.py --measure  on an H200: writes truth/record_stream.json

The cases are those in which people call it: work on a side stream, a copy to the host, a batch that is brought ahead of its use;
each also with a host that waits, so that nothing is late.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

import torch

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "record_stream.json"
MIB = 2**20
ROUNDS = 8


def side_stream(waits: bool) -> Callable[[], None]:
    """A result is used on a side stream, which is busy."""
    side, weight = torch.cuda.Stream(), torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(ROUNDS):
            made = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.mm(weight, weight)
                made.add(1)
            made.record_stream(side)
            del made
            if waits:
                torch.cuda.synchronize()

    return step


def offload(waits: bool) -> Callable[[], None]:
    """Results are copied to the host on a side stream, and dropped."""
    side, weight = torch.cuda.Stream(), torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    batch = torch.ones(8192, 4096, device="cuda", dtype=torch.bfloat16)
    hosts = [torch.empty(8192, 4096, dtype=torch.bfloat16, pin_memory=True) for _ in range(ROUNDS)]

    def step() -> None:
        for host in hosts:
            made = torch.mm(batch, weight)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                host.copy_(made, non_blocking=True)
            made.record_stream(side)
            del made
            if waits:
                torch.cuda.synchronize()

    return step


def prefetch(waits: bool) -> Callable[[], None]:
    """A batch is brought to the GPU on a side stream while the one before it is used."""
    side, weight = torch.cuda.Stream(), torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    host = torch.ones(4096, 8192, dtype=torch.bfloat16).pin_memory()

    def bring() -> torch.Tensor:
        with torch.cuda.stream(side):
            return host.to("cuda", non_blocking=True)

    def step() -> None:
        batch = bring()
        for _ in range(ROUNDS):
            torch.cuda.current_stream().wait_stream(side)
            batch.record_stream(torch.cuda.current_stream())
            torch.mm(torch.mm(batch, weight), weight)
            batch = bring()
            if waits:
                torch.cuda.synchronize()

    return step


CASES = {"side stream": side_stream, "offload": offload, "prefetch": prefetch}


def build(case: str, waits: bool) -> Callable[[], None]:
    return CASES[case](waits)


def measure_one(case: str, waits: bool) -> dict[str, int]:
    step = build(case, waits)
    for _ in range(2):  # the first time also starts libraries, which takes long and lets the GPU catch up
        step()
        torch.cuda.synchronize()
    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def measure() -> None:
    found = {}
    for case in CASES:
        for waits in (False, True):
            command = [sys.executable, __file__, "--one", case, *(["--waits"] if waits else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[f"{case}, host waits" if waits else case] = json.loads(done.stdout)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    TRUTH.write_text(json.dumps(about | {"cases": found}, indent=1) + "\n")


def compare() -> None:
    import memfit

    lines = [
        "Memory that another stream still uses when it is freed, predicted and measured on an H200.",
        "",
        "`python benchmarks/accuracy/record_stream.py`",
        "",
        "| case | allocated, MiB | predicted | reserved, MiB | predicted |",
        "|---|---|---|---|---|",
    ]
    truth = json.loads(TRUTH.read_text())
    for name, real in truth["cases"].items():
        case, _, waits = name.partition(", ")
        found = memfit.predict(lambda case=case, waits=waits: build(case, bool(waits)), gpu="H200", steps=2)
        figures = (real["allocated"], found.peak_allocated, real["reserved"], found.peak_reserved)
        lines.append(f"| {name} | {' | '.join(f'{figure / MIB:,.1f}' for figure in figures)} |")
        print(lines[-1])
    (BENCHMARKS / "results" / "record_stream.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="on an H200")
    parser.add_argument("--one", choices=CASES, help="one case on this GPU, as JSON")
    parser.add_argument("--waits", action="store_true")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure_one(arguments.one, arguments.waits)))
    elif arguments.measure:
        measure()
    else:
        compare()
