"""Tokens a second that torchtitan has published for Llama 3.1 8B on H100s, and what the clock says of the same.

    python benchmarks/timing/torchtitan_speed.py     # anywhere, some minutes: writes results/torchtitan_speed.md

Published in github.com/pytorch/torchtitan, docs/performance.md: FSDP, 2 sequences of 8192 tokens on each GPU, selective activation
checkpointing. Their H100 have 96 GB of HBM2e with 2.4 TB/s and a limit of 500 watts.
memfit knows them as H100-96GB, which sustains 5/7 of the share of its peak that 700 watts leave (``data/shares.toml``).
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import warnings
from typing import Any

BENCHMARKS = pathlib.Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results" / "torchtitan_speed.md"
PUBLISHED = {(8, "none"): 5762, (8, "blocks"): 6667, (128, "none"): 5605, (128, "blocks"): 6514}
"""By GPUs and compilation."""


def predict_here(world_size: int, compiled: str) -> dict[str, Any]:
    import memfit

    inputs = {
        "model": "llama3-8b",
        "batch": 2,
        "seq": 8192,
        "checkpointing": "selective",
        "optimizer": "adamw-fused",
        "compile": compiled,
    }
    prediction = memfit.predict(gpu="H100-96GB", world_size=world_size, steps=2, **inputs)
    parts = prediction.time_breakdown
    assert parts is not None
    return {
        "tokens_per_second": prediction.tokens_per_second,
        "mfu": prediction.mfu,
        "exposed": parts.exposed_communication / parts.total,
        "recompute": parts.recompute / parts.total,
    }


def main() -> None:
    lines = [
        "# torchtitan's published speed, and what the clock says",
        "",
        "Written by `python benchmarks/timing/torchtitan_speed.py`.",
        "",
    ]
    lines += [
        "| GPUs | compiled | published tokens/s | predicted | off by | MFU | exposed communication |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for (world_size, compiled), published in PUBLISHED.items():
        command = [sys.executable, __file__, str(world_size), compiled]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
        if not line:
            lines.append(
                f"| {world_size} | {compiled} | {published:,} | failed: {done.stderr.strip().splitlines()[-1][:80]} | | | |"
            )
            continue
        found = json.loads(line[7:])
        speed = found["tokens_per_second"]
        words = f"{speed:,.0f} | {speed / published - 1:+.0%} | {found['mfu']:.1%} | {found['exposed']:.1%}"
        lines.append(f"| {world_size} | {compiled} | {published:,} | {words} |")
        print(lines[-1], flush=True)
    lines += ["", REMARKS]
    RESULTS.write_text("\n".join(lines))


REMARKS = """What differs, beside the GPU: torchtitan was measured in 2024 with torch 2.6 and its flash attention, where torch
2.11 takes cuDNN's, which is up to twice as fast; its selective checkpointing keeps every second product, memfit's keeps all of
them; data loading, logging and ranks that come late are in their figures and not in ours; and no link was measured by us.
"""


if __name__ == "__main__":
    if len(sys.argv) == 3:
        warnings.filterwarnings("ignore")
        print("RESULT " + json.dumps(predict_here(int(sys.argv[1]), sys.argv[2])))
    else:
        main()
