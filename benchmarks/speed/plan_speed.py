"""What a search costs: Llama-3 70B on 64 H100, as typed on the command line, twice into a fresh cache.

    python benchmarks/speed/plan_speed.py

Writes ``results/plan_speed.md``. Processor time is what counts on a machine that does other things meanwhile: on two cores that
are free, a search takes a little more than half of it.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from typing import Any

BENCHMARKS = pathlib.Path(__file__).parents[1]
FLAGS = "--model llama3-70b --world-size 64 --gpu H100-80GB"
MAIN = "import sys; from memfit.cli import main; sys.exit(main())"
SHOWN = ("strategy", "tp", "pp", "cp", "schedule", "batch", "microbatches", "checkpointing", "compile")


def plan(cache: str) -> tuple[float, float, dict[str, Any]]:
    """Seconds on the clock, seconds of processors, and what was found."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "plan", *FLAGS.split(), "--json"],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, spent, json.loads(done.stdout)


def row(cell: dict[str, Any]) -> str:
    words = ", ".join(f"{name} {cell[name]}" for name in SHOWN if cell.get(name))
    if "error" in cell:
        return f"| {words} | | | {cell['error']} |"
    fits = "yes" if cell["fits"] else "no"
    return f"| {words} | {cell['step_seconds']:.2f} | {cell['smallest_fit'] / 2**30:.1f} | {fits} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        first, spent, found = plan(cache)
        again, spent_again, cached = plan(cache)
    assert all(cell["cached"] for cell in cached["tried"] if "error" not in cell)
    assert found["best"] is not None
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"`memfit plan {FLAGS}`, {cores} cores, torch {metadata.version('torch')}; `python benchmarks/speed/plan_speed.py`.",
        "",
        "| | seconds | of processors |",
        "|---|---|---|",
        f"| the search, into an empty cache | {first:.0f} | {spent:.0f} |",
        f"| the search again | {again:.1f} | {spent_again:.1f} |",
        "",
        f"{found['num_candidates']:,} configurations: {found['num_too_large']:,} cannot fit by their bounds, "
        f"{found['num_too_slow']:,} cannot be faster, {len(found['tried'])} predictions, {found['num_left']:,} not looked at. "
        f"Nothing can be faster than the answer by more than {found['gap']:.0%}.",
        "",
        "| predicted | a step, seconds | smallest fit, GiB | fits |",
        "|---|---|---|---|",
        *map(row, found["tried"]),
        "",
        "The answer:",
        "",
        row(found["best"]),
    ]
    (BENCHMARKS / "results" / "plan_speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
