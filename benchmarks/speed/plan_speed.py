"""What a search costs: three models, as typed on the command line, each twice into a fresh cache.

    python benchmarks/speed/plan_speed.py             all three
    python benchmarks/speed/plan_speed.py llama3-8b   one of them, printed

All three write ``results/plan_speed.md``. Processor time is what counts on a machine that does other things meanwhile: on two
cores that are free, a search takes a little more than half of it.
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
from dataclasses import dataclass
from importlib import metadata
from typing import Any

BENCHMARKS = pathlib.Path(__file__).parents[1]
SEARCHES = {
    "llama3-8b": "--model llama3-8b --world-size 8 --gpu H100-80GB",
    "llama3-70b": "--model llama3-70b --world-size 64 --gpu H100-80GB",
    "qwen3-30b-a3b": "--model qwen3-30b-a3b --world-size 64 --gpu H100-80GB",
}
MAIN = "import sys; from memfit.cli import main; sys.exit(main())"
SHOWN = ("strategy", "tp", "pp", "cp", "ep", "schedule", "batch", "microbatches", "checkpointing", "compile")


@dataclass(frozen=True)
class Cost:
    """One search."""

    first: float
    """Seconds until the first answer, which is from bounds."""
    seconds: float
    of_processors: float
    found: dict[str, Any]


def plan(flags: str, cache: str) -> Cost:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", MAIN, "plan", *flags.split(), "--json"]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, env=os.environ | {"XDG_CACHE_HOME": cache}, stdout=said, stderr=subprocess.PIPE, text=True
        ) as search,
    ):
        assert search.stderr is not None
        lines = ((time.perf_counter() - start, line) for line in search.stderr)
        first = next((seconds for seconds, line in lines if "by bounds alone" in line), float("nan"))
        for _ in lines:
            pass
        assert search.wait() == 0
        said.seek(0)
        found = json.load(said)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(first, time.perf_counter() - start, spent, found)


def row(cell: dict[str, Any]) -> str:
    words = ", ".join(f"{name} {cell[name]}" for name in SHOWN if cell.get(name))
    if "error" in cell:
        return f"| {words} | | | {cell['error']} |"
    fits = "yes" if cell["fits"] else "no"
    return f"| {words} | {cell['step_seconds']:.2f} | {cell['smallest_fit'] / 2**30:.1f} | {fits} |"


def lines_of(flags: str) -> list[str]:
    with tempfile.TemporaryDirectory() as cache:
        once, again = plan(flags, cache), plan(flags, cache)
    found = once.found
    assert all(cell["cached"] for cell in again.found["tried"] if "error" not in cell)
    assert found["best"] is not None
    return [
        f"## `memfit plan {flags}`",
        "",
        "| | first answer | seconds | of processors |",
        "|---|---|---|---|",
        f"| into an empty cache | {once.first:.1f} | {once.seconds:.0f} | {once.of_processors:.0f} |",
        f"| again | {again.first:.1f} | {again.seconds:.1f} | {again.of_processors:.1f} |",
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
        "",
    ]


def main() -> None:
    wanted = sys.argv[1:] or list(SEARCHES)
    cores = len(os.sched_getaffinity(0))
    lines = [f"{cores} cores, torch {metadata.version('torch')}; `python benchmarks/speed/plan_speed.py`.", ""]
    for name in wanted:
        lines += lines_of(SEARCHES[name])
    print("\n".join(lines))
    if len(wanted) == len(SEARCHES):
        (BENCHMARKS / "results" / "plan_speed.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
