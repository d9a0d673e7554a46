"""Peak memory that Megatron-LM's own tests publish, predicted by running Megatron-LM's own scripts with the published flags.

    git clone https://github.com/NVIDIA/Megatron-LM        # commit d98e8a64dd; build megatron/core/datasets (make) once
    python benchmarks/blind/megatron_goldens.py --megatron Megatron-LM [CASE ...]       # results/megatron_goldens.{json,md}
    python benchmarks/blind/megatron_goldens.py --megatron Megatron-LM --layers transformer_engine      # needs its Python part

Rows are those with Megatron's local layers (``truth/megatron_goldens.csv``), or with Transformer Engine's on H100s without
eight-bit recipes (``truth/megatron_te_goldens.csv``). They were recorded at different dates in NVIDIA's containers, which have apex
and flash_attn; figures are of the last rank, which writes the logs. Data are mock data with a vocabulary of the same size. What
differs by more than 3 % is named in the table with its date.
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
import tempfile
import time

BENCHMARKS = pathlib.Path(__file__).parents[1]
NAMES = {"local": "megatron_goldens", "transformer_engine": "megatron_te_goldens"}
"""Of the files in ``truth`` and ``results``, by whose layers the rows have."""
CASES = "tests/functional_tests/test_cases"
GPUS = {"a100": "A100-80GB", "h100": "H100-80GB", "gb200": "B200", "lts": "A100-80GB"}
"""By a part of the name that Megatron gives a machine; the first that fits."""
WORLD = 8
STEPS = 4
DROPPED = ("data-path", "vocab-file", "merge-file", "save", "load", "tensorboard-dir", "data-cache-path", "async-save")
DROPPED += ("use-persistent-ckpt-worker", "train-iters", "eval-iters", "tokenizer-type", "dist-ckpt", "ckpt", "use-checkpoint")
DROPPED += ("exit",)
"""Flags that say where files are; nothing is saved here."""
VOCABULARY = 50257


def flags_of(config: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the command line of a case, from its YAML: one ``key: value`` a line."""
    environment: dict[str, str] = {}
    flags: list[str] = []
    part = ""
    for line in config.splitlines():
        if found := re.match(r"^(\w+):", line):
            part = found[1]
        elif (found := re.match(r"^\s+(--)?([\w-]+):\s*(.*?)\s*(#.*)?$", line)) is not None:
            name, value = found[2], found[3].strip("'\"")
            if part == "ENV_VARS":
                environment[name] = value
            elif part == "MODEL_ARGS" and not name.startswith(DROPPED) and value != "false":
                flags += [f"--{name}"] if value in ("true", "") else [f"--{name}", *value.split()]
    return environment, flags


def predict(megatron: pathlib.Path, case: str, gpu: str) -> dict:
    environment, flags = flags_of((megatron / CASES / case / "model_config.yaml").read_text())
    added = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", str(STEPS)]
    added += [] if "--vocab-size" in flags else ["--vocab-size", str(VOCABULARY)]
    command = [sys.executable, "-m", "memfit", "run", "--json", "--gpu", gpu, "--nproc", str(WORLD), "--rank", str(WORLD - 1)]
    environment = os.environ | environment | {"MEMFIT_INSTALLED": "apex,flash_attn"}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        command += ["--out", f"{scratch}/run.memfit", "pretrain_gpt.py", *flags, *added, "--eval-iters", "0"]
        run = subprocess.run(command, cwd=megatron, env=environment, capture_output=True, text=True, timeout=900)
    try:
        found = json.loads(run.stdout)
    except json.JSONDecodeError:
        return {"error": "\n".join(run.stderr.strip().splitlines()[-30:])}
    return {"peak": found["peak_allocated"], "reserved": found["peak_reserved"], "seconds": round(time.perf_counter() - start, 1)}


def rows(layers: str) -> list[dict[str, str]]:
    return list(csv.DictReader((BENCHMARKS / "truth" / f"{NAMES[layers]}.csv").open()))


def gpu_of(row: dict[str, str]) -> str:
    return next(gpu for part, gpu in GPUS.items() if part in row["gpu"])


def compare(found: dict[str, dict], layers: str) -> None:
    flag = "" if layers == "local" else f" --layers {layers}"
    lines = [
        "Peak allocated memory that Megatron-LM's tests publish, and what is predicted for it: "
        f"`python benchmarks/blind/megatron_goldens.py{flag}`. MiB, of the last rank.",
        "",
        "| case | machine | published | predicted | off |",
        "|---|---|---|---|---|",
    ]
    offs = []
    for row in rows(layers):
        said = found.get(f"{row['family']}/{row['case']} {gpu_of(row)}")
        if said is None:
            continue
        if "error" in said:
            lines.append(f"| {row['case']} | {row['gpu']} | {int(row['max_allocated']) / 2**20:,.1f} | not predicted | |")
            continue
        off = said["peak"] / int(row["max_allocated"]) - 1
        offs.append(off)
        published = int(row["max_allocated"]) / 2**20
        lines.append(f"| {row['case']} | {row['gpu']} | {published:,.1f} | {said['peak'] / 2**20:,.1f} | {off:+.2%} |")
    if offs:
        sizes = sorted(map(abs, offs))
        within = sum(size <= 0.03 for size in sizes)
        median = statistics.median(sizes)
        lines += ["", f"{len(offs)} of {len(rows(layers))} rows, median {median:.2%}, worst {sizes[-1]:.2%}; {within} within 3 %."]
    (BENCHMARKS / "results" / f"{NAMES[layers]}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", type=pathlib.Path, help="a checkout of Megatron-LM; without it the table alone is made again")
    parser.add_argument("--layers", choices=tuple(NAMES), default="local", help="whose layers the rows have")
    parser.add_argument("cases", nargs="*", help="parts of their names; all if none")
    args = parser.parse_args()
    results = BENCHMARKS / "results" / f"{NAMES[args.layers]}.json"
    found = json.loads(results.read_text()) if results.exists() else {}
    wanted = sorted({(gpu_of(row), f"{row['family']}/{row['case']}") for row in rows(args.layers)})
    for gpu, case in wanted if args.megatron else ():
        if not args.cases or any(part in case for part in args.cases):
            found[f"{case} {gpu}"] = predict(args.megatron, case, gpu)
            print(case, gpu, found[f"{case} {gpu}"], flush=True)
            results.write_text(json.dumps(found, indent=1) + "\n")
    compare(found, args.layers)


if __name__ == "__main__":
    main()
