"""The proof of the clock on others' libraries: step times on an H200, predicted before they were measured.

    python benchmarks/timing/library_steps.py --measure FILE --thirds 0 1 --calls   # on a GPU: adds to FILE
    python benchmarks/timing/library_steps.py --predict --thirds 2 [NAME ...]       # anywhere: adds to results/library_steps.json
    python benchmarks/timing/library_steps.py                                       # the table: results/library_steps.md

``library_workloads.py`` has the workloads. Constants of the rates come from single operators and the first third of the workloads, by
a hash of their names; rules were chosen by the second; the third was predicted and committed before it was measured, and looked at once.
``truth/library_step_times.json`` has what was measured, of the first two thirds with the time of every operator.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pathlib
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
        while len([part for part in children.values() if not part.with_suffix(".timed").exists() and is_alive(part)]) > 1:
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
        while is_alive(part):
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


def is_alive(part: pathlib.Path) -> bool:
    child = int(part.with_suffix(".pid").read_text())
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


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


# -- anywhere ------------------------------------------------------------------------------------------------------------------


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
        names = [name for name in WORKLOADS if third(name) == number and "ms" in truth.get(name, {})]
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
                f"- {title}: {len(part)}, {statistics.median(part):.1%} median, {part[int(0.9 * len(part))]:.1%} nine in ten, {part[-1]:.1%} worst"
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
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="no further workload begins after these")
    options = parser.parse_args()
    asked = options.workloads or [name for name in WORKLOADS if third(name) in options.thirds]
    if options.measure:
        measure(asked, options.measure, options.seconds, options.calls)
    elif options.predict:
        from benchmarks.timing.step_time import predict

        write_results(predict(asked, options.jobs))
    else:
        write_results({})
