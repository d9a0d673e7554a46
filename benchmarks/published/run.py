"""Figures that others published of training on their GPUs, predicted here.

    python benchmarks/published/run.py --rows FILE.csv [FILE.csv ...]     # any file with the columns of those in rows/
    python benchmarks/published/run.py --table                            # writes the table and docs/published.svg again

A row becomes a prediction by ``readers.py``, which says why where it cannot. Each is predicted in a process of its own, and
``results/published_rows.json`` keeps it: rows that are there are not predicted again. timm's rows need timm and torchvision
(``--with FOLDER`` of packages). ``rows/`` has copies of the public figures, with their sources in its README.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results" / "published_rows.json"
TABLE = BENCHMARKS / "results" / "published_rows.md"
PICTURE = BENCHMARKS.parent / "docs" / "published.svg"


def predict_here(text: str) -> dict[str, Any]:
    """What memfit says of one case of ``readers.py``."""
    import memfit
    from benchmarks.published.readers import Case

    case, began = Case.from_json(text), time.process_time()
    prediction = memfit.predict(
        **case.asked(), gpu=case.gpu, world_size=case.num_gpus, steps=case.steps, torch_version=case.torch_version
    )
    seconds = prediction.step_seconds
    return {
        "peak_allocated": prediction.peak_allocated,
        "peak_reserved": prediction.peak_reserved,
        "context": prediction.target.gpu.context_bytes,
        "fits": prediction.fits,
        "step_seconds": seconds,
        "per_second": case.units_per_step / seconds if seconds else None,
        "basis": prediction.time.basis[:80],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def predict_all(files: list[pathlib.Path], only: str, packages: str, seconds: float) -> None:
    from benchmarks.published.readers import read_row

    known, began = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}, time.monotonic()
    for file in files:
        with file.open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
        for number, row in enumerate(rows):
            case = read_row(file.stem, number, row)
            if only and not re.search(only, case.name):
                continue
            if case.name in known and "step_seconds" in known[case.name].get("predicted", {}):
                continue
            if time.monotonic() - began > seconds:
                return
            entry: dict[str, Any] = {"case": json.loads(case.to_json())}
            if not case.why_not:
                asked = [sys.executable, __file__, "--predict-here", case.to_json()]
                paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), packages)))
                try:
                    done = subprocess.run(
                        asked, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"PYTHONPATH": paths}
                    )
                    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
                    entry |= {"predicted": json.loads(line[7:])} if line else {"error": done.stderr.strip().splitlines()[-1][:300]}
                except subprocess.TimeoutExpired:
                    entry["error"] = "took more than 300 seconds"
            known[case.name] = entry
            RESULTS.write_text(json.dumps(known, indent=1) + "\n")
            said = entry.get("predicted", {}).get("per_second") or entry.get("error") or case.why_not
            print(f"{time.monotonic() - began:6.0f} s  {case.name:46s} {case.gpu:10s} {case.per_second} {said}", flush=True)


# -- the table and its picture -----------------------------------------------------------------------------------------------------


def off_by(entry: dict[str, Any]) -> tuple[float | None, float | None]:
    """Of time (a step that is said to take longer is above 0) and of memory, as shares."""
    case, predicted = entry["case"], entry.get("predicted")
    if predicted is None:
        return None, None
    of_time = case["per_second"] / predicted["per_second"] - 1 if case["per_second"] and predicted["per_second"] else None
    said = {"allocated": "peak_allocated", "reserved": "peak_reserved", "used": "peak_reserved"}
    of_memory = None
    if case["memory_bytes"]:
        bytes_said = predicted[said[case["memory_kind"]]] + (predicted["context"] if case["memory_kind"] == "used" else 0)
        of_memory = bytes_said / case["memory_bytes"] - 1
    return of_time, of_memory


def write_table() -> None:
    known = json.loads(RESULTS.read_text())
    lines = [
        "# Figures that others published, predicted",
        "",
        "Written by `python benchmarks/published/run.py --table`. Times: how much longer than published a step is said to take.",
        "",
        "| GPU | rows | time, median of errors | time, median | memory, median of errors | fits: right |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for entry in known.values():
        if "predicted" in entry:
            by_gpu.setdefault(entry["case"]["gpu"], []).append(entry)
    points = []
    for gpu, entries in sorted(by_gpu.items()):
        times = [off for off, _ in map(off_by, entries) if off is not None]
        memory = [off for _, off in map(off_by, entries) if off is not None]
        fits = [entry["predicted"]["fits"] == entry["case"]["fits"] for entry in entries if entry["case"]["fits"] is not None]
        of_times = f"{statistics.median(map(abs, times)):.1%} | {statistics.median(times):+.1%}" if times else " | "
        of_memory = f"{statistics.median(map(abs, memory)):.1%}" if memory else ""
        lines.append(f"| {gpu} | {len(entries)} | {of_times} | {of_memory} | {f'{sum(fits)} of {len(fits)}' if fits else ''} |")
        points += [
            (gpu, entry["case"]["per_second"], entry["predicted"]["per_second"])
            for entry in entries
            if off_by(entry)[0] is not None
        ]
    every = [off for entry in known.values() for off in [off_by(entry)[0]] if off is not None]
    if every:
        lines += ["", f"All {len(every)} rows with a time: off by {statistics.median(map(abs, every)):.1%} in the median."]
    lines += ["", "| row | GPU | torch | published | predicted | off by | memory |", "|---|---|---|---:|---:|---:|---|"]
    for name, entry in known.items():
        case, predicted = entry["case"], entry.get("predicted")
        if predicted is None:
            continue
        of_time, of_memory = off_by(entry)
        shown = f"{case['per_second']:,.4g} | {predicted['per_second']:,.4g} | {of_time:+.1%}" if of_time is not None else " | | "
        told = f"{of_memory:+.1%} {case['memory_kind']}" if of_memory is not None else ""
        lines.append(f"| {name} | {case['gpu']} | {case['torch']} | {shown} | {told} |")
    cannot: dict[str, list[str]] = {}
    for name, entry in known.items():
        if "predicted" not in entry:
            cannot.setdefault(entry["case"]["why_not"] or entry.get("error", ""), []).append(name)
    lines += ["", "## Not predicted, and why", ""]
    lines += [f"- {len(names)}: {why} ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})" for why, names in cannot.items()]
    TABLE.write_text("\n".join(lines) + "\n")
    if points:
        PICTURE.write_text(draw(points))
    print("\n".join(lines[:22]))


def draw(points: list[tuple[str, float, float]]) -> str:
    """Predicted over published, both in units a second, on logarithmic scales; a colour for each GPU."""
    import math

    colours = ("#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e0a030", "#444444", "#3fa7a0", "#b36b2c", "#7a9e3b", "#c06c9b")
    names = sorted({gpu for gpu, _, _ in points})
    low, high = math.log10(min(min(a, b) for _, a, b in points)) - 0.2, math.log10(max(max(a, b) for _, a, b in points)) + 0.2

    def at(value: float) -> float:
        return 60 + 480 * (math.log10(value) - low) / (high - low)

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 600" font-family="sans-serif" font-size="13">']
    parts.append('<rect width="720" height="600" fill="white"/><path d="M60 540 L540 60" stroke="#999" stroke-dasharray="4 4"/>')
    parts.append('<path d="M60 60 V540 H540" stroke="#333" fill="none"/>')
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        place, text = at(10**exponent), f"{10**exponent:,}"
        parts.append(f'<text x="{place:.0f}" y="560" text-anchor="middle">{text}</text>')
        parts.append(f'<text x="54" y="{604 - place:.0f}" text-anchor="end">{text}</text>')
    parts.append('<text x="300" y="585" text-anchor="middle">published: tokens or images a second of one GPU</text>')
    parts.append('<text x="20" y="300" text-anchor="middle" transform="rotate(-90 20 300)">predicted</text>')
    for gpu, published, predicted in points:
        colour = colours[names.index(gpu) % len(colours)]
        parts.append(f'<circle cx="{at(published):.1f}" cy="{600 - at(predicted):.1f}" r="4" fill="{colour}" fill-opacity="0.7"/>')
    for number, gpu in enumerate(names):
        colour = colours[number % len(colours)]
        parts.append(
            f'<circle cx="565" cy="{80 + 22 * number}" r="5" fill="{colour}"/><text x="578" y="{84 + 22 * number}">{gpu}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", type=pathlib.Path, default=[])
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows whose name has it, as a regular expression")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further row begins after these")
    parser.add_argument("--with", dest="packages", default="", metavar="FOLDER", help="further packages: timm and torchvision")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--predict-here", metavar="CASE")
    options = parser.parse_args()
    if options.predict_here:
        warnings.filterwarnings("ignore")
        print("RESULT " + json.dumps(predict_here(options.predict_here)))
    else:
        if options.rows:
            predict_all(options.rows, options.only, options.packages, options.seconds)
        if RESULTS.exists() and (options.table or options.rows):
            write_table()
