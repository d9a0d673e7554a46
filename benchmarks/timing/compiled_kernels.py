"""Every kernel of compiled training steps: microseconds on an H200, and as the clock prices them.

    python benchmarks/timing/compiled_kernels.py --measure FILE [NAME ...]   # on a GPU: adds to FILE
    python benchmarks/timing/compiled_kernels.py [NAME ...]                  # anywhere: writes results/compiled_kernels.md

Kernels have the names that Inductor gives them. ``truth/compiled_kernels.json`` has the workloads of ``frontier_zoo.py`` below.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "compiled_kernels.json"
RESULTS = BENCHMARKS / "results" / "compiled_kernels.md"
NAMES = ("f_c_llama_amp", "f_c_llama_ckpt", "f_c_loss", "f_c_gpt2", "f_c_resnet", "f_fp8_compiled")

Kernels = dict[str, list[float]]
"""By name: how often it ran in a step, and how many microseconds that took in all."""


def measured_here(name: str) -> Kernels:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.workloads.frontier_zoo import FRONTIER

    torch.manual_seed(0)
    run = FRONTIER[name]("cuda")
    for _ in range(4):
        run.step(lambda what: None)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run.step(lambda what: None)
        torch.cuda.synchronize()
    return {
        row.key: [row.count, round(row.self_device_time_total, 1)] for row in found.key_averages() if row.self_device_time_total
    }


def predicted_here(name: str) -> Kernels:
    import memfit
    from benchmarks.workloads.frontier_zoo import FRONTIER

    def build() -> object:
        run = FRONTIER[name]("cuda")
        return lambda: run.step(lambda what: None)

    time = memfit.predict(build, gpu="H200", steps=3).time
    assert time is not None
    part = slice(time.steps[-2].span, time.steps[-1].span)
    kernels: Kernels = defaultdict(lambda: [0, 0.0])
    for cost, seconds in zip(time.spans.cost[part], time.spans.seconds[part], strict=True):
        row = kernels[time.costs[cost].operator]
        row[0] += 1
        row[1] += 1e6 * float(seconds)
    return kernels


def measure(names: list[str], path: pathlib.Path, jobs: int) -> None:
    """Kernels are timed one by one, whoever else is compiling."""

    def in_a_process(name: str) -> None:
        done = subprocess.run([sys.executable, __file__, "--here", name], capture_output=True, text=True, check=False)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
        if line:
            known[name] = json.loads(line[7:])
            path.write_text(json.dumps(known, indent=1) + "\n")
        print(name, "done" if line else done.stderr[-500:], flush=True)

    known = json.loads(path.read_text()) if path.exists() else {}
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(in_a_process, names))


def compare(names: list[str]) -> None:
    truth = json.loads(TRUTH.read_text())
    lines = [
        "# Kernels of compiled steps on an H200, and as the clock prices them",
        "",
        "Written by `python benchmarks/timing/compiled_kernels.py`, with torch 2.11. Kernels that Inductor wrote, by name:",
        "",
        "| workload | kernels | measured ms | predicted ms | off by | half of the kernels are within | the furthest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        ours = predicted_here(name)
        both = {kernel: (us, ours[kernel][1]) for kernel, (_, us) in truth[name].items() if kernel in ours}
        measured, predicted = (sum(column) / 1e3 for column in zip(*both.values(), strict=True))
        half = statistics.median(abs(said / us - 1) for us, said in both.values())
        furthest = max(both, key=lambda kernel: abs(both[kernel][1] - both[kernel][0]))
        lines.append(
            f"| {name} | {len(both)} | {measured:.2f} | {predicted:.2f} | {predicted / measured - 1:+.1%} | {half:.0%} "
            f"| `{furthest[:60]}`: {both[furthest][1]:,.0f} for {both[furthest][0]:,.0f} us |"
        )
        print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--here", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("workloads", nargs="*", metavar="NAME")
    given = parser.parse_args()
    chosen = given.workloads or list(NAMES)
    if given.here:
        print("RESULT " + json.dumps(measured_here(given.here)))
    elif given.measure:
        measure(chosen, given.measure, given.jobs)
    else:
        compare(chosen)
