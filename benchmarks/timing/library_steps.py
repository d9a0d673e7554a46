"""The proof of the clock on others' libraries: step times on an H200, predicted before they were measured.

    python benchmarks/timing/library_steps.py --measure FILE --thirds 0 1 --calls   # on a GPU: adds to FILE
    python benchmarks/timing/library_steps.py --predict --thirds 2 [NAME ...]       # anywhere: adds to results/library_steps.json
    python benchmarks/timing/library_steps.py                                       # the table: results/library_steps.md

``library_workloads.py`` has the workloads, in thirds by a hash of their names. Constants come from single operators and
the first third, rules were chosen by the second too; the last was predicted before it was measured, and looked at once.
``truth/library_step_times.json`` has what was measured, ``truth/library_calls.json.gz`` each operator of the first two thirds, how
often it ran in a step and how many microseconds that took on the GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pathlib
import resource
import signal
import statistics
import sys
import time
import traceback
import warnings
from typing import Any, NoReturn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.timing.library_workloads import WORKLOADS, import_torchvision, third

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "library_step_times.json"
RESULTS = BENCHMARKS / "results" / "library_steps"
MOST_SECONDS = 40
MOST_PROCESSOR_SECONDS = 200
HOST_BOUND = 0.15
"""A step whose GPU idles for a larger share of it waits for the host."""


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


def measure(names: list[str], path: pathlib.Path, seconds: float, with_calls: bool) -> None:
    """Each in a process of its own, a copy of this one. While one has the GPU, the next starts CUDA, and those before it read what
    the profiler wrote."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a process that asked CUDA itself cannot be copied
    prepare()
    began, lock, children = time.monotonic(), path.with_suffix(".lock"), {}
    lock.touch()
    for name in names:
        while (
            len(
                [
                    part
                    for part in children.values()
                    if not part.with_suffix(".timed").exists() and is_running(int(part.with_suffix(".pid").read_text()))
                ]
            )
            > 1
        ):
            time.sleep(0.05)
        if time.monotonic() - began > seconds:
            break
        part = path.with_name(f"{path.stem}.{name}.part")
        child = os.fork()
        if child == 0:
            measure_here(name, part, lock, with_calls)
        part.with_suffix(".pid").write_text(str(child))
        children[name] = part
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
    for part in children.values():
        while is_running(int(part.with_suffix(".pid").read_text())):
            time.sleep(0.1)
    known = json.loads(path.read_text()) if path.exists() else {}
    for name, part in children.items():
        timed = part.with_suffix(".timed")
        source = part if part.exists() else timed
        known[name] = json.loads(source.read_text()) if source.exists() else {"error": "the process died"}
        print(f"{name:26s} {known[name].get('ms') or known[name]['error'][-200:]}", flush=True)
        for each in (part, timed, part.with_suffix(".pid")):
            each.unlink(missing_ok=True)
    lock.unlink()
    path.write_text(json.dumps(known) + "\n")


def prepare() -> None:
    """What the copies need is imported once."""
    import_torchvision()
    import benchmarks.timing.step_time as step_time

    step_time.workloads()
    from transformers import BertModel, GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration  # noqa: F401


def measure_here(name: str, part: pathlib.Path, lock: pathlib.Path, with_calls: bool) -> NoReturn:
    warnings.filterwarnings("ignore")
    signal.alarm(MOST_SECONDS)
    try:
        import torch

        from benchmarks.timing.step_time import calls_of, measure_one

        torch.zeros(8, 8, device="cuda").mm(torch.zeros(8, 8, device="cuda"))
        torch.cuda.synchronize()
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            found, run = measure_one(WORKLOADS[name])
            timed = part.with_suffix(".writing")
            timed.write_text(json.dumps(found))
            if not with_calls:
                timed.rename(part.with_suffix(".timed"))
            else:
                found |= calls_of(run.step, lambda: (timed.rename(part.with_suffix(".timed")), fcntl.flock(held, fcntl.LOCK_UN)))
    except Exception:
        found = {"error": traceback.format_exc()[-500:]}
    part.write_text(json.dumps(found))
    os._exit(0)


# -- anywhere, in copies of one process that has imported everything -----------------------------------------------------------


def predict(names: list[str], jobs: int, folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Each in a process of its own; one that takes more than ``MOST_PROCESSOR_SECONDS`` is given up."""
    prepare()
    children: dict[str, int] = {}
    for name in names:
        while len([child for child in children.values() if is_running(child)]) >= jobs:
            time.sleep(0.1)
        child = os.fork()
        if child == 0:
            predict_here(name, folder / f"{name}.json")
        children[name] = child
    while any(is_running(child) for child in children.values()):
        time.sleep(0.1)
    found = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) if path.exists() else {"error": "the process died"} for name, path in found.items()}


def predict_here(name: str, path: pathlib.Path) -> NoReturn:
    from benchmarks.timing.step_time import predict_one

    warnings.filterwarnings("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_SECONDS, MOST_PROCESSOR_SECONDS))
    try:
        found = predict_one(name, "H200")
    except BaseException:
        found = {"error": traceback.format_exc()[-500:]}
    path.write_text(json.dumps(found))
    os._exit(0)


def is_running(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


# -- the table -----------------------------------------------------------------------------------------------------------------


def write_results(found: dict[str, dict[str, Any]]) -> None:
    """What was predicted before stays where it is not predicted again."""
    path = RESULTS.with_suffix(".json")
    found = (json.loads(path.read_text()) if path.exists() else {}) | found
    path.write_text(json.dumps(found, indent=1) + "\n")
    truth = json.loads(TRUTH.read_text()) if TRUTH.exists() else {}
    lines = [
        "# Step times of others' libraries on an H200, predicted without one",
        "",
        "Written by `python benchmarks/timing/library_steps.py`, which says what the thirds are.",
    ]
    for number, title in enumerate(
        ("First third: constants", "Second third: rules", "Last third: predicted, committed, then measured")
    ):
        names = [name for name in WORKLOADS if third(name) == number and "ms" in truth.get(name, {}) and name in found]
        lines += ["", f"## {title}", "", *summary([name for name in names if "ms" in found.get(name, {})], truth, found), ""]
        lines += [
            "| workload | measured ms | predicted ms | off by | range | GPU at work ms | waits for the host |",
            "|---|---:|---:|---:|---|---:|---|",
        ]
        lines += [row(name, truth[name]["ms"], found.get(name, {})) for name in names]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def summary(names: list[str], truth: dict[str, Any], found: dict[str, Any]) -> list[str]:
    off = {name: found[name]["ms"] / truth[name]["ms"] - 1 for name in names}
    lines = []
    for title, wanted in (("all", None), ("the GPU is the slow one", False), ("the host is", True)):
        part = sorted(abs(off[name]) for name in names if wanted is None or waits(found[name]) == wanted)
        if part:
            lines.append(
                f"- {title}: {len(part)}, {statistics.median(part):.1%} median, {part[int(0.9 * len(part))]:.1%} nine in ten, "
                f"{part[-1]:.1%} worst"
            )
    ranged = [name for name in names if waits(found[name])]
    held = [name for name in ranged if found[name]["range_ms"][0] <= truth[name]["ms"] <= found[name]["range_ms"][1]]
    return [*lines, f"- the range holds {len(held)} of the {len(ranged)} that wait for the host"] if ranged else lines


def waits(entry: dict[str, Any]) -> bool:
    return bool(entry["idle_ms"] > HOST_BOUND * entry["ms"])


def row(name: str, measured: float, entry: dict[str, Any]) -> str:
    if "ms" not in entry:
        return f"| {name} | {measured:,.1f} | failed | | | | |"
    low, high = entry["range_ms"]
    return (
        f"| {name} | {measured:,.1f} | {entry['ms']:,.1f} | {entry['ms'] / measured - 1:+.1%} | {low:,.1f} to {high:,.1f} | "
        f"{entry['compute_ms']:,.1f} | {'yes' if waits(entry) else ''} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--thirds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--measure", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--calls", action="store_true", help="also every operator of a step, with its time on the GPU")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for each prediction by itself")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="no further workload begins after these")
    options = parser.parse_args()
    asked = options.workloads or [name for name in WORKLOADS if third(name) in options.thirds]
    if options.measure:
        measure(asked, options.measure, options.seconds, options.calls)
    elif options.predict:
        options.out.mkdir(parents=True, exist_ok=True)
        found = predict(asked, options.jobs, options.out)
        print({name: entry.get("ms", entry.get("error", "")[-300:]) for name, entry in found.items()})
        write_results({name: entry for name, entry in found.items() if "ms" in entry})
    else:
        write_results({})
