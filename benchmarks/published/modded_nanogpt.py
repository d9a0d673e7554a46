"""KellerJordan/modded-nanogpt: how near are the peaks that its records print, predicted by running the scripts in their logs?

    git clone https://github.com/KellerJordan/modded-nanogpt
    python benchmarks/published/modded_nanogpt.py modded-nanogpt [--jobs 2] [LOG ...]      # results/modded_nanogpt.{json,md}

A log begins with the whole source of its run. Data are made up in the format of its files: documents of random length, since
sizes of batches do not depend on what is in them. Records of older torch versions are predicted for 2.11. Each run is given
``--seconds``; the table says how many training steps were seen in them.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

BENCHMARKS = pathlib.Path(__file__).parents[1]
SHORT = "records/track_1_short/"
LOGS = {
    "2026-07-13_PrefixTokenPrediction/baseline-1390/464eeb21-504a-4a41-b8c8-5fd0324cbddb.txt": 1,
    "2026-07-13_PrefixTokenPrediction/baseline-1390-8x/19422684-0f4f-475b-a3cb-b7220db53644.txt": 8,
    "2026-06-11_RecursiveFromBest/this_pr/244ecee6-870d-41d8-8074-cd2431d12315.txt": 8,
    "2026-03-06_SimplifyHC/0ab4a843-8c3a-4fb4-9fff-8e1d39852646.txt": 8,
    "2026-01-10_FusedLinearReLUSquare/single_gpu_run.txt": 1,
    "2025-09-21_DropAttn/01fc4a96-f2a0-47a1-8a6a-c7d10bac99fe.txt": 8,
    "2025-05-30_noallreduce/8054c239-3a18-499e-b0c8-dbd27cb4b3ab.txt": 8,
}
"""And how many GPUs each ran on."""
SHARDS = {"train_000001": 30_000_000, "train_000002": 30_000_000, "train_000003": 10_000_000, "val_000000": 60_000_000}
BEGIN, MAGIC = 50256, 20240520
MIB = 2**20
STEPS = 40
"""Training steps of each that are run: what records warm up with, all sizes of batches and an evaluation, is among them."""


NOTES = (
    "The records of 2026 were run for 40 training steps: the warm-up with all sizes of batches and its evaluations, whose logits "
    "are the peak, and the first of the record's own. What is reserved may grow later. With 8 GPUs the peak depends on when NCCL's "
    "watchdog lets go of gradients whose collectives are waited for by futures: runs of one folder print 30,193 (3), 30,897 (1) "
    "and 30,908 MiB (6, July), 30,166 to 30,881 (June), 31,254 to 31,296 (March). The rows of July and March on 8 GPUs count what "
    "is held; that of June was run before steps of hand-written optimizers were steps of the ledger, and not again. Those "
    "of torch 2.10 were predicted for 2.11; Inductor was that of 2.13. The records of 2025 were predicted by an earlier state "
    "of memfit with few steps: where Triton is not installed, Inductor cannot plan flex attention (2025-05-30), and says so; "
    "products in 8 bits were predicted as eager code."
)


def write_data(folder: pathlib.Path) -> None:
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, count in SHARDS.items():
        tokens = draw.integers(0, BEGIN, count, dtype=np.uint16)
        ends = np.cumsum(np.clip(draw.lognormal(6.3, 1.0, count // 300), 20, None)).astype(int)
        tokens[ends[ends < count]] = tokens[0] = BEGIN
        header = np.zeros(256, np.int32)
        header[:3] = MAGIC, 1, count
        (folder / f"fineweb_{name}.bin").write_bytes(header.tobytes() + tokens.tobytes())


def write_scripts(log: str, folder: pathlib.Path) -> None:
    source = log.split("=" * 100)[0]
    first, *others = re.split(r"\n\n-{40}\n# (\w+\.py)\n-{40}\n\n", source)
    (folder / "train_gpt.py").write_text(first)
    for name, text in zip(others[::2], others[1::2], strict=True):
        (folder / name).write_text(text)


def predict(records: pathlib.Path, name: str, num_gpus: int, data: pathlib.Path, seconds: int) -> dict:
    log = (records / SHORT / name).read_text()
    printed = re.search(r"peak memory allocated: (\d+) MiB reserved: (\d+) MiB", log)
    version = re.search(r"Running PyTorch (\d\S+)", log)
    row: dict = {
        "log": name,
        "gpus": num_gpus,
        "torch": version[1] if version else "",
        "peak": int(printed[1]),
        "reserved": int(printed[2]),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_scripts(log, folder)
        (folder / "data").symlink_to(data)
        (folder / "logs" / "v1").mkdir(parents=True)
        command = [sys.executable, "-m", "memfit", "run", "--json", "--gpu", "H100-80GB", "--nproc", str(num_gpus)]
        command += ["--torch-version", "2.11+cu130", "--max-seconds", str(seconds), "--steps", str(STEPS), "train_gpt.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"DATA_PATH": "."})
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not said:
        return row | {"error": (done.stderr.strip() or done.stdout.strip())[-1500:]}
    found = json.loads(said[-1])
    found = found.get("ranks", [found])[0]
    steps = found.get("covered", {}).get("training_steps")
    mine = {"predicted_peak": found["peak_allocated"], "predicted_reserved": found["peak_reserved"], "steps_seen": steps}
    return row | mine | {"assumptions": found["assumptions"]}


def table(rows: list[dict]) -> str:
    lines = ["Peaks that records of modded-nanogpt print (H100), and what `memfit run` says of the script in their log. MiB.", ""]
    lines += [
        "| record | GPUs | torch | allocated | predicted | off | reserved | predicted | off | steps seen |",
        "|" + "---|" * 10,
    ]
    for row in rows:
        place = f"| {row['log'].split('/')[0]} | {row['gpus']} | {row['torch']} "
        if "error" in row:
            lines.append(f"{place}| {row['peak']:,} | {row['error'].splitlines()[-1][:80]} | | {row['reserved']:,} | | | |")
            continue
        peak, reserved = row["predicted_peak"] / MIB, row["predicted_reserved"] / MIB
        lines.append(
            f"{place}| {row['peak']:,} | {peak:,.0f} | {peak / row['peak'] - 1:+.2%} | {row['reserved']:,} | {reserved:,.0f} "
            f"| {reserved / row['reserved'] - 1:+.2%} | {row['steps_seen']} |"
        )
    lines += ["", NOTES]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=pathlib.Path, help="a checkout of modded-nanogpt")
    parser.add_argument("logs", nargs="*", help=f"below {SHORT}; all of the table if none")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=2000)
    parser.add_argument("--out", type=pathlib.Path, default=BENCHMARKS / "results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        data = pathlib.Path(scratch) / "data"
        write_data(data / "fineweb10B")
        found = []
        for row in pool.map(lambda name: predict(args.records, name, LOGS.get(name, 8), data, args.seconds), args.logs or LOGS):
            found.append(row)
            (args.out / "modded_nanogpt.json").write_text(json.dumps(found, indent=1) + "\n")
            (args.out / "modded_nanogpt.md").write_text(table(found))
            print(table(found[-1:]), flush=True)


if __name__ == "__main__":
    main()
