"""Predict the zoo without a GPU and compare with what an H200 did.

    python benchmarks/accuracy/accuracy.py                       # all workloads, one fresh process each
    python benchmarks/accuracy/accuracy.py llama_amp fsdp2_full  # some of them
    python benchmarks/accuracy/accuracy.py --host 2.11           # with another torch installed: results/accuracy_2.11.md
    python benchmarks/accuracy/accuracy.py --zoo more            # workloads that no rule was learned from: more_zoo.py
    python benchmarks/accuracy/accuracy.py --zoo frontier        # compiled, float8, pipelines, CP and EP: frontier_zoo.py

Each process predicts one workload with ``memfit.predict`` for the H200 and torch that the truth was measured with, and compares
peaks, levels and reserved memory with ``truth/h200_truth.json``, the smallest fit with ``truth/h200_fit.json``, and what expandable
segments reserve with ``truth/h200_expandable.json``. Writes
``results/accuracy.md`` and ``results/accuracy.json``; ``--zoo more`` compares with ``truth/more_h200.json`` and writes
``results/accuracy_more.*``, ``--zoo frontier`` with ``truth/h200_frontier.json`` and ``results/accuracy_frontier.*``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
ZOOS = {"zoo": "h200_truth.json", "more": "more_h200.json", "frontier": "h200_frontier.json"}
EXPANDABLE = json.loads((BENCHMARKS / "truth" / "h200_expandable.json").read_text())
FIT = {found["name"]: found for found in json.loads((BENCHMARKS / "truth" / "h200_fit.json").read_text())}
MIB = 2**20


def truth_of(zoo: str) -> dict:
    """What the GPU did, by workload."""
    path = BENCHMARKS / "truth" / ZOOS[zoo]
    return json.loads(path.read_text()) if path.exists() else {}


def ranks_of(name: str) -> tuple[int, int]:
    """How many ranks a workload has, and which of them was measured; no ranks where it is not distributed."""
    from benchmarks.workloads import frontier_zoo, more_zoo, zoo

    if name in frontier_zoo.FRONTIER:
        build = frontier_zoo.FRONTIER[name]
        return getattr(build, "world", 0), getattr(build, "rank", 0)
    if name in more_zoo.MORE:
        return more_zoo.WORLD_SIZES.get(name, 0), 0
    if not name.startswith(zoo.DISTRIBUTED):
        return 0, 0
    sized = re.search(r"_w?(\d+)(?:_nockpt)?$", name)
    return 1 if name.startswith("ddp") else int(sized[1]) if sized else 8, 0


def predict_one(name: str, zoo_name: str) -> dict:
    """In a process of its own: what memfit says of a workload, beside the truth."""
    warnings.filterwarnings("ignore")
    import torch

    import memfit
    from benchmarks.workloads import frontier_zoo, more_zoo, zoo
    from memfit.allocator import parse_alloc_conf, replay

    levels = []
    world_size, rank = ranks_of(name)

    def build():
        if world_size:
            torch.distributed.init_process_group("nccl")
        torch.manual_seed(0)
        run = (zoo.ZOO | more_zoo.MORE | frontier_zoo.FRONTIER)[name]("cuda")

        def step():
            seen = {}
            run.step(lambda mark: seen.setdefault(mark, torch.cuda.memory_allocated()))
            levels.append(seen)

        return step

    truth = truth_of(zoo_name)[name]
    start = time.perf_counter()
    prediction = memfit.predict(
        build, gpu="H200", world_size=max(world_size, 1), rank=rank, steps=len(truth["iters"]), torch_version="2.11+cu130"
    )
    peak = prediction.peak_allocated
    seconds = time.perf_counter() - start
    off_levels = [
        said[mark] / measured["marks"][mark] - 1
        for said, measured in zip(levels, truth["iters"], strict=True)
        for mark in ("forward", "backward", "step")
        if mark in measured["marks"]
    ]
    off_steps = [
        step.peak_allocated / measured["peak"] - 1 for step, measured in zip(prediction.steps, truth["iters"], strict=True)
    ]
    return {
        "name": name,
        "torch": torch.__version__,
        "peak": peak,
        "true_peak": max(truth["peak"], truth["init"]["peak"]),
        "off_steps": off_steps,
        "off_levels": off_levels,
        "reserved": prediction.peak_reserved,
        "true_reserved": max(step["reserved"] for step in truth["iters"]),  # with cudnn.benchmark that of the first step
        "expandable": replay(prediction.requests, parse_alloc_conf("expandable_segments:True", "2.11")).peak_reserved,
        "true_expandable": EXPANDABLE.get(name, {}).get("reserved", 0),
        "fit": prediction.smallest_fit,
        "true_fit": FIT.get(name, {}).get("min_fit_mib", 0) * MIB,
        "seconds": seconds,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "events": len(prediction.ledger.events),
        "breakdown": {category.label: size for category, size in prediction.breakdown.items()},
        "assumptions": prediction.assumptions,
    }


def in_fresh_process(name: str, zoo_name: str, limit_s: float = 900) -> dict:
    command = [sys.executable, __file__, "--zoo", zoo_name, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no answer in {limit_s:.0f} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(answers[-1]) if answers else {"name": name, "error": problem_in(done.stderr)[:300]}


def problem_in(output: str) -> str:
    """The last line that names an error, or else the last of all."""
    lines = output.strip().splitlines() or ["no output"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Failed)\b.*: ", line)), lines[-1])


def percent(value: float) -> str:
    return f"{100 * value:+.2f} %"


def worst(values: list[float]) -> float:
    return max(values, key=abs)


def row(found: dict) -> str:
    if "error" in found:
        return f"| {found['name']} | {found['error'][:120]} | | | | | | | | |"
    fit, expandable = (
        percent(found[key] / found[f"true_{key}"] - 1) if found[f"true_{key}"] else "" for key in ("fit", "expandable")
    )
    off = percent(found["peak"] / found["true_peak"] - 1)
    return (
        f"| {found['name']} | {found['true_peak'] / MIB:,.1f} | {found['peak'] / MIB:,.1f} | {off} "
        f"| {percent(worst(found['off_steps']))} | {percent(worst(found['off_levels']))} "
        f"| {percent(found['reserved'] / found['true_reserved'] - 1)} | {fit} | {expandable} | {found['seconds']:.1f} |"
    )


def summary(rows: list[dict]) -> list[str]:
    ran = [found for found in rows if "error" not in found]
    if not ran:
        return ["Nothing ran."]
    lines = [f"{len(ran)} of {len(rows)} workloads ran."]
    for what, offs in {
        "Allocated peak": [abs(found["peak"] / found["true_peak"] - 1) for found in ran],
        "Worst step peak": [abs(worst(found["off_steps"])) for found in ran],
        "Worst level": [abs(worst(found["off_levels"])) for found in ran],
        "Reserved peak": [abs(found["reserved"] / found["true_reserved"] - 1) for found in ran],
        "Reserved peak with expandable segments": [
            abs(found["expandable"] / found["true_expandable"] - 1) for found in ran if found["true_expandable"]
        ],
        "Smallest fit": [abs(found["fit"] / found["true_fit"] - 1) for found in ran if found["true_fit"]],
    }.items():
        if offs:
            ninetieth = sorted(offs)[min(len(offs) - 1, int(len(offs) * 0.9))]
            lines.append(
                f"{what}: off by {100 * statistics.median(offs):.2f} % in the median, "
                f"{100 * ninetieth:.2f} % at the 90th percentile, "
                f"{100 * max(offs):.2f} % at worst."
            )
    return lines


def table(rows: list[dict], zoo_name: str) -> list[str]:
    installed = next((found["torch"] for found in rows if "torch" in found), "none")
    return [
        f"Predicted without a GPU, torch {installed} installed, for an H200 with torch 2.11.0+cu130:",
        f"`python benchmarks/accuracy/accuracy.py{'' if zoo_name == 'zoo' else f' --zoo {zoo_name}'}`.",
        "Peaks in MiB. Levels are those after forward, backward and optimizer step; the worst of all steps is shown.",
        "Expandable is the reserved peak with `expandable_segments:True`.",
        "",
        "| workload | H200 peak | predicted | off | worst step | worst level | reserved | smallest fit | expandable | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(row, rows),
        "",
        *summary(rows),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", help="all if none")
    parser.add_argument("--zoo", choices=ZOOS, default="zoo", help="zoo.py, more_zoo.py or frontier_zoo.py")
    parser.add_argument("--one", action="store_true", help="in this process, as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--out", type=pathlib.Path, default=BENCHMARKS / "results")
    parser.add_argument("--host", default="", help="names the table of another host: 2.11 gives accuracy_2.11.md")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(predict_one(args.workloads[0], args.zoo)))
        return
    rows = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for found in pool.map(lambda name: in_fresh_process(name, args.zoo), args.workloads or truth_of(args.zoo)):
            rows.append(found)
            print(row(found), flush=True)
    if not args.workloads:
        stem = "_".join(filter(None, ("accuracy", args.zoo.removeprefix("zoo"), args.host)))
        (args.out / f"{stem}.json").write_text(json.dumps(rows, indent=1) + "\n")
        (args.out / f"{stem}.md").write_text("\n".join(table(rows, args.zoo)) + "\n")
    print("\n".join(["", *summary(rows)]))


if __name__ == "__main__":
    main()
