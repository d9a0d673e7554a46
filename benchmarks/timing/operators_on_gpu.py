"""How long single operators take on a GPU, and what the host spends on issuing them; and what the clock says of them.

    python benchmarks/timing/operators_on_gpu.py --measure        # on a GPU, three minutes: writes truth/operator_times.json
    python benchmarks/timing/operators_on_gpu.py                  # anywhere: compares the clock with it: results/operators.md
    python benchmarks/timing/operators_on_gpu.py --show products  # the same, with every call of these families

``truth/operator_times.json`` has, per family of ``operator_cases.py``, every call (``memfit.timing.operators.calls``) with the
microseconds that its kernels took: ``hot`` when the same call ran just before, ``cold`` when the GPU's cache held none of its
tensors. ``host`` has the microseconds of ``host_cases.py``; ``sustained`` what a product reaches when it runs for a second and a
half and the GPU gets hot.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import math
import pathlib
import statistics
import sys
import time
import traceback
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "operator_times.json"
RESULTS = BENCHMARKS / "results" / "operators.md"
FLUSH_BYTES = 256 * 2**20
RUNS = 3


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


def measure_family(makes: list[Any], lock: pathlib.Path | None) -> dict[str, Any]:
    """With a ``lock``, several processes take turns: each holds it while it uses the GPU."""
    import torch

    from benchmarks.timing.gpu_calls import profiled, summary

    torch.zeros(1, device="cuda")
    held = lock.open() if lock else None
    if held:
        fcntl.flock(held, fcntl.LOCK_EX)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    errors: list[str] = []
    with profiled(lambda: held and fcntl.flock(held, fcntl.LOCK_UN)) as found:
        for make in makes:
            try:
                work = make()
                work()
                work()
                for label, before in (("hot", None), ("cold", flush.zero_)):
                    for _ in range(RUNS):
                        with found.tracing(label, before):
                            work()
                del work
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}"[:200])
        torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return {"calls": summary(found), "errors": errors}


def measure_sustained() -> dict[str, Any]:
    """Teraflops of the first tenth of a second, and of the last half of one and a half."""
    import torch

    found = {}
    for name, dtype, size in (
        ("bf16 8192", torch.bfloat16, 8192),
        ("bf16 4096", torch.bfloat16, 4096),
        ("f32 4096", torch.float32, 4096),
    ):
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        torch.mm(a, b)
        torch.cuda.synchronize()
        time.sleep(0.5)
        rates, began = [], time.perf_counter()
        count = max(1, int(0.03 * 4e14 / (2 * size**3)) if dtype is torch.bfloat16 else int(0.03 * 5e13 / (2 * size**3)))
        while time.perf_counter() - began < 1.5:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(count):
                torch.mm(a, b)
            end.record()
            end.synchronize()
            rates.append(2 * size**3 * count / start.elapsed_time(end) / 1e9)
        found[name] = {"first": round(rates[0], 1), "last": round(sorted(rates[len(rates) // 2 :])[len(rates) // 4], 1)}
    x = torch.randn(2**28, device="cuda")
    y = torch.empty_like(x)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for timed in (False, True):
        if timed:
            start.record()
        for _ in range(300):
            y.copy_(x)
    end.record()
    end.synchronize()
    found["copy, terabytes a second"] = round(300 * 2 * 2**30 / start.elapsed_time(end) / 1e9, 3)
    return found


def measure_host() -> dict[str, Any]:
    import torch

    from benchmarks.timing.host_cases import CASES, microseconds

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {}
    for name, make in CASES.items():
        try:
            function, units = make(device)
            found[name] = round(microseconds(function, units, device), 2)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


def measure(path: pathlib.Path, families: list[str], lock: pathlib.Path | None) -> None:
    import torch

    from benchmarks.timing.operator_cases import CASES

    torch.manual_seed(0)
    began = time.perf_counter()
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "families": {}}
    # A process that has used CUDA's profiler is slower from then on: the host comes first.
    for name, part in {"host": measure_host, "sustained": measure_sustained}.items():
        if not families or name in families:
            found[name] = part()
            print(name, round(time.perf_counter() - began, 1), flush=True)
            path.write_text(json.dumps(found, indent=1))
    for name, makes in CASES.items():
        if not families or name in families:
            try:
                found["families"][name] = measure_family(makes, lock)
            except Exception:
                found["families"][name] = {"calls": {}, "errors": [traceback.format_exc()[-600:]]}
            print(name, len(makes), round(time.perf_counter() - began, 1), flush=True)
            path.write_text(json.dumps(found, indent=1))


# -- anywhere --------------------------------------------------------------------------------------------------------------------


def compare(shown: list[str]) -> str:
    """Families and their operators: how far the clock is from what was measured."""
    from memfit.hardware import find_gpu
    from memfit.timing import Call, KernelSettings, price

    chip, lines = find_gpu("H200"), []
    for family, found in json.loads(TRUTH.read_text())["families"].items():
        settings = KernelSettings(allow_tf32=family == "tf32", is_sustained=False)
        off: dict[str, list[float]] = {}
        for text, entry in found["calls"].items():
            if "hot" not in entry:
                continue
            call = Call.parse(text)
            measured = math.sqrt(max(entry["hot"], 0.5) * max(entry.get("cold", entry["hot"]), 0.5))
            predicted = 1e6 * price(call, chip, settings).seconds
            if predicted:
                off.setdefault(call.name, []).append(predicted / measured - 1)
            if family in shown:
                print(f"{measured:10.1f} us measured {predicted:10.1f} predicted  {text[:150]}")
        every = sorted(abs(one) for each in off.values() for one in each)
        if every:
            tenth, worst = every[int(0.9 * len(every))], every[-1]
            lines.append(f"| {family} | {len(every)} | {statistics.median(every):.1%} | {tenth:.1%} | {worst:.0%} |")
    return "\n".join(lines)


def write_results(shown: list[str]) -> None:
    head = "# Operators on an H200: the clock and the measurement\n\nWritten by `python benchmarks/timing/operators_on_gpu.py`.\n\n"
    table = "| family | calls | median | nine in ten | worst |\n|---|---:|---:|---:|---:|\n"
    RESULTS.write_text(f"{head}{table}{compare(shown)}\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="?", const=str(TRUTH), metavar="FILE")
    parser.add_argument("--families", nargs="*", default=[])
    parser.add_argument("--lock", type=pathlib.Path, help="a file that processes take turns by")
    parser.add_argument("--show", nargs="*")
    options = parser.parse_args()
    if options.measure:
        measure(pathlib.Path(options.measure), options.families, options.lock)
    else:
        write_results(options.show or [])
