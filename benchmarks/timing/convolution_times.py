"""How long convolutions, what stands around them in a net, and recurrent layers take on a GPU, kernel by kernel.

    python benchmarks/timing/convolution_times.py --measure [FILE]  # on a GPU, two minutes: adds what its file in truth/ lacks
    python benchmarks/timing/convolution_times.py                   # anywhere: the clock beside it: results/convolution_times.md
    python benchmarks/timing/convolution_times.py --show NAME ...   # the same, and every call whose case or operator has a NAME

A convolution's forward, the gradient by its images and the gradient by its weights are calls of their own. The file has, for every
case of ``convolution_cases.py``, its calls (``memfit.timing.operators.calls``), microseconds ``hot``, when the same calls ran just
before, and ``cold``, when the GPU's cache held none of their tensors; and the kernels with their microseconds (hot), by their
number in ``names``.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import json
import math
import pathlib
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "convolution_times.json.gz"
RESULTS = BENCHMARKS / "results" / "convolution_times.md"
FLUSH_BYTES = 256 * 2**20
CHUNK = 48


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


def rounded(us: float) -> float:
    """Three digits: two runs differ by more."""
    return float(f"{us:.3g}")


def measure_chunk(chunk: list[Any], flush: Any, names_by_text: dict[str, int]) -> dict[str, Any]:
    import torch

    from benchmarks.timing.gpu_calls import profiled

    errors: dict[str, str] = {}
    with profiled() as found:
        for case in chunk:
            torch.backends.cudnn.allow_tf32 = case.is_tf32
            try:
                work = case.make("cuda")
                work()
                for label, before, runs in (("hot", None, 3), ("cold", flush.zero_, 2)):
                    for _ in range(runs):
                        with found.tracing(f"{case.name}|{label}", before):
                            work()
                del work
            except Exception as error:
                errors[case.name] = f"{type(error).__name__}: {error}"[:200]
        torch.cuda.synchronize()
    measured: dict[str, Any] = {case.name: {"tf32": case.is_tf32, "calls": {}} for case in chunk}
    for label, text, numbers in found.numbers_by_text():
        name, _, heat = label.partition("|")
        entry = measured[name]["calls"].setdefault(text, {})
        entry[heat] = rounded(statistics.median(found.microseconds[number] for number in numbers))
        if heat == "hot":
            last = numbers[-1]
            names = [names_by_text.setdefault(kernel, len(names_by_text)) for kernel in found.kernels[last]]
            entry["kernels"] = [[name, rounded(us)] for name, us in zip(names, found.kernel_us[last], strict=True)]
    for name, error in errors.items():
        measured[name]["error"] = error
    return measured


def measure(path: pathlib.Path, seconds: float) -> None:
    import torch

    from benchmarks.timing.convolution_cases import cases

    torch.manual_seed(0)
    began = time.perf_counter()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    known = json.loads(gzip.decompress(TRUTH.read_bytes())) if TRUTH.exists() else {"cases": {}, "names": []}
    names_by_text = {name: number for number, name in enumerate(known["names"])}
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cases": known["cases"],
        "names": known["names"],
    }
    # In an order without a pattern: if time runs out, some of all kinds are measured.
    todo = sorted(
        (case for case in cases() if case.name not in found["cases"]),
        key=lambda case: hashlib.sha256(case.name.encode()).hexdigest(),
    )
    for start in range(0, len(todo), CHUNK):
        if time.perf_counter() - began > seconds:
            print("out of time after", start, "of", len(todo))
            break
        found["cases"].update(measure_chunk(todo[start : start + CHUNK], flush, names_by_text))
        found["names"] = list(names_by_text)
        gc.collect()
        torch.cuda.empty_cache()
        print(start, round(time.perf_counter() - began, 1), flush=True)
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=9) as file:
            json.dump(found, file, separators=(",", ":"))


# -- anywhere --------------------------------------------------------------------------------------------------------------------


def measured_calls() -> Iterator[tuple[str, bool, Any, float]]:
    """Case, whether tf32 was allowed, call, and microseconds between hot and cold."""
    from memfit.timing import Call

    with gzip.open(TRUTH, "rt", encoding="utf-8") as file:
        found = json.load(file)
    for name, case in found["cases"].items():
        for text, entry in case["calls"].items():
            if "hot" in entry:
                yield (
                    name,
                    case["tf32"],
                    Call.parse(text),
                    math.sqrt(max(entry["hot"], 0.5) * max(entry.get("cold", entry["hot"]), 0.5)),
                )


def is_held_out(name: str) -> bool:
    """A third of the cases took no part in finding the rules."""
    return hashlib.sha256(name.encode()).digest()[-1] % 3 == 0


def compare(shown: list[str]) -> str:
    """Rows of a table: how far the clock is from what was measured, of cases that were fitted and of those held out."""
    from memfit.hardware import find_gpu
    from memfit.timing import KernelSettings, price

    chip = find_gpu("H200")
    off: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for name, is_tf32, call, measured in measured_calls():
        predicted = 1e6 * price(call, chip, KernelSettings(convolution_tf32=is_tf32, is_sustained=False)).seconds
        kind = kind_of(call)
        if predicted and kind:
            off[kind][is_held_out(name)].append(abs(predicted / measured - 1))
            if any(word in f"{name} {kind}" for word in shown):
                print(f"{measured:9.1f} us measured {predicted:9.1f} predicted {predicted / measured - 1:+7.0%}  {name:50} {kind}")
    lines = []
    for kind, both in sorted(off.items()):
        cells = [
            f"{len(each)} | {middle(each)} | {sorted(each)[int(0.9 * len(each))]:.0%} | {max(each):.0%}" for each in both if each
        ]
        lines.append(f"| {kind} | {' | '.join(cells)}{' |' * 4 * (len(cells) < 2)} |")
    return "\n".join(lines)


def middle(errors: list[float]) -> str:
    return f"{statistics.median(errors):.1%}"


def write_results(shown: list[str]) -> None:
    head = (
        "# Convolutions, what stands around them, and recurrent layers on an H200: the clock against what was measured\n\n"
        "Written by `python benchmarks/timing/convolution_times.py`. The rules were found with two thirds of the cases; the rest "
        "was held out.\n\n"
    )
    table = "| | fitted | median | nine in ten | worst | held out | median | nine in ten | worst |\n|---|" + "---:|" * 8 + "\n"
    RESULTS.write_text(f"{head}{table}{compare(shown)}\n")
    print(RESULTS.read_text())


def kind_of(call: Any) -> str:
    """What a row of the comparison is about; empty for what has a family of its own elsewhere."""
    name = call.name
    if name == "convolution_backward":
        wanted = call.arguments[-1]
        name = "images' gradient" if wanted[0] else "weights' gradient"
    if name in ("convolution", "images' gradient", "weights' gradient"):
        groups = call.arguments[8 if name == "convolution" else 9]
        return f"{name}{', depthwise' if call.inputs[-1].shape[1] == 1 and groups > 1 else ', grouped' if groups > 1 else ''}"
    return "" if name in ("ones_like", "zeros", "ones", "zeros_like") else name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="?", const=str(TRUTH), metavar="FILE")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after so many")
    parser.add_argument("--show", nargs="*", default=[])
    options = parser.parse_args()
    if options.measure:
        measure(pathlib.Path(options.measure), options.seconds)
    else:
        write_results(options.show)
