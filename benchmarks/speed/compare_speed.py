"""What a grid costs: 24 cells of Llama-3 8B, as typed on the command line, twice into a fresh cache.

    python benchmarks/speed/compare_speed.py

Writes ``results/compare_speed.md``.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from importlib import metadata

BENCHMARKS = pathlib.Path(__file__).parents[1]
FLAGS = (
    "--model llama3-8b --gpu H100-80GB --world-size 16 --strategy full_shard,shard_grad_op,hybrid_shard,no_shard "
    "--checkpointing none,selective,full --batch 1,2"
)
MAIN = "import sys; from memfit.cli import main; sys.exit(main())"


def compare(cache: str) -> tuple[float, list[dict]]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "compare", *FLAGS.split(), "--json"],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - start, json.loads(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        first, cells = compare(cache)
        again, cached = compare(cache)
    failed = [cell for cell in cells if "error" in cell]
    assert not failed, failed[0]["error"]
    assert all(cell["cached"] for cell in cached)
    seconds = sorted(cell["seconds"] for cell in cells)
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"`memfit compare {FLAGS}`, {len(cells)} cells, {cores} cores, torch {metadata.version('torch')}; "
        "`python benchmarks/speed/compare_speed.py`.",
        "",
        "| | seconds |",
        "|---|---|",
        f"| the grid, into an empty cache | {first:.0f} |",
        f"| the grid again | {again:.1f} |",
        f"| a cell, median | {seconds[len(seconds) // 2]:.1f} |",
        f"| a cell, slowest | {seconds[-1]:.1f} |",
    ]
    (BENCHMARKS / "results" / "compare_speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
