"""The simulated allocator against a real one: every trace, the smallest fit, expandable segments, and all settings.

python benchmarks/accuracy/allocator_truth.py [FOLDER]       by default benchmarks/truth
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from memfit.allocator import RequestKind, Requests, load_requests, parse_alloc_conf, replay, smallest_fit
from memfit.units import MIB

EXPANDABLE = parse_alloc_conf("expandable_segments:True")


def main(folder: Path) -> None:
    console = Console(width=160)
    console.print(compare_traces(folder))
    if (folder / "settings").exists():
        console.print(compare_settings(folder / "settings"))


def compare_traces(folder: Path) -> Table:
    """Peaks with the settings they were recorded with and with expandable segments, and the smallest fit."""
    fits = {row["name"]: row for row in read_json(folder / "h200_fit.json")}
    expandable = read_json(folder / "h200_expandable.json")
    table = Table(
        "trace",
        "allocated, MiB",
        "off",
        "reserved",
        "off",
        "smallest fit",
        "H200: fails, fits",
        "off",
        "expandable",
        "off",
        box=None,
    )
    for path in sorted((folder / "traces").glob("*.npz")):
        name = path.stem.removeprefix("trace_")
        requests = load_requests(path)
        plain, least = replay(requests), smallest_fit(requests)
        peaks = requests.recorded_peaks
        row = [name, mebibytes(plain.peak_allocated), off(plain.peak_allocated, peaks["peak_allocated"])]
        row += [mebibytes(plain.peak_reserved), off(plain.peak_reserved, peaks["peak_reserved"]), mebibytes(least.capacity)]
        if name in fits:
            fails, works = fits[name]["max_oom_mib"], fits[name]["min_fit_mib"]
            row += [f"{fails:,.0f}, {works:,.0f}", off_interval(least.capacity / MIB, fails, works)]
        else:
            row += ["", ""]
        if name in expandable:
            reserved = replay(requests, EXPANDABLE).peak_reserved
            row += [mebibytes(reserved), off(reserved, max(step["reserved"] for step in expandable[name]["iters"][:2]))]
        table.add_row(*row)
    return table


def compare_settings(folder: Path) -> Table:
    """How many of the figures of ``torch.cuda.memory_stats()`` differ, under each setting."""
    table = Table("case", "settings", "limit, MiB", "requests", "statistics", "that differ", box=None)
    for name, measured in read_json(folder / "settings.json").items():
        stats, requests = measured["stats"], load_requests(next(folder.glob(f"{name}.[np]*")))
        ours = replay_as_measured(requests, measured)
        different = [key for key in stats if ours.get(key) != stats[key]]
        limit = mebibytes(measured["limit"]) if measured["limit"] else ""
        table.add_row(name, measured["conf"], limit, str(len(requests)), str(len(stats)), str(len(different)))
    return table


def replay_as_measured(requests: Requests, measured: dict) -> dict[str, int]:
    """The statistics of a replay under the settings, and the limit, that the log was recorded with."""
    settings = parse_alloc_conf(measured["conf"])
    if measured["limit"]:
        settings = replace(settings, per_process_memory_fraction=measured["limit"] / measured["total_memory"])
    if settings.per_process_memory_fraction is not None:
        requests = without_empty_cache(requests)
    return replay(requests, settings, total_memory=measured["total_memory"]).memory_stats()


def without_empty_cache(requests: Requests) -> Requests:
    """Under a limit the allocator gives cached memory back by itself, and so does the replay."""
    kept = requests.kind != RequestKind.EMPTY_CACHE
    columns = {name: value[kept] for name, value in vars(requests).items() if isinstance(value, np.ndarray)}
    return replace(requests, **columns)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def mebibytes(size: int) -> str:
    return f"{size / MIB:,.1f}"


def off(ours: float, truth: float) -> str:
    return "exact" if ours == truth else f"{100 * (ours / truth - 1):+.2f} %"


def off_interval(ours: float, fails: float, works: float) -> str:
    return "inside" if fails <= ours <= works else off(ours, fails if ours < fails else works)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "truth")
