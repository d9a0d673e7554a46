"""Unmodified scripts of others, planned to 70 % of what they need, and trained within that on an H200.

    python benchmarks/plans/scripts_on_gpu.py --predict FOLDER          # anywhere: writes results/plans/scripts/NAME.json
    python benchmarks/plans/scripts_on_gpu.py --measure FOLDER OUT.json  # on an H200: adds a row for each script to OUT.json

``FOLDER`` has a checkout of each repository of ``SCRIPTS``. Each script runs under ``memfit train --plan`` with no more memory than
the plan's budget (``torch.cuda.set_per_process_memory_fraction``), and as it is with all memory. Losses must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
PLANS = ROOT / "benchmarks" / "results" / "plans" / "scripts"
SHARE = 0.7
LIMITED = """
import runpy, sys, torch
budget, sys.argv = int(sys.argv[1]), sys.argv[2:]
if budget:
    torch.cuda.set_per_process_memory_fraction(budget / torch.cuda.get_device_properties(0).total_memory)
torch.use_deterministic_algorithms(True, warn_only=True)
import atexit
atexit.register(lambda: print("MEMORY", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Script:
    """A script in a repository, and what is typed behind its name."""

    repository: str
    script: str
    arguments: tuple[str, ...]
    losses: str
    """What its losses look like in what it prints."""


SCRIPTS = {
    "nanogpt": Script(
        "nanoGPT",
        "train.py",
        (
            *("--dataset=made_up", "--compile=False", "--batch_size=12", "--gradient_accumulation_steps=4", "--eval_iters=2"),
            *("--max_iters=12", "--log_interval=1", "--n_layer=12"),
        ),
        r"iter \d+: loss [\d.]+",
    ),
}


def make_data(folder: pathlib.Path) -> None:
    """Random tokens, as nanoGPT reads them."""
    import numpy as np

    data = folder / "nanoGPT" / "data" / "made_up"
    data.mkdir(exist_ok=True, parents=True)
    for part, count in (("train", 400_000), ("val", 100_000)):
        np.random.default_rng(0).integers(0, 50257, count, dtype=np.uint16).tofile(data / f"{part}.bin")


def memfit(*words: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return subprocess.run([sys.executable, "-m", "memfit", *words], cwd=folder, capture_output=True, text=True, env=env)


def predict(folder: pathlib.Path) -> None:
    PLANS.mkdir(parents=True, exist_ok=True)
    make_data(folder)
    for name, script in SCRIPTS.items():
        where = folder / script.repository
        done = memfit("run", "--json", "--steps", "3", script.script, *script.arguments, folder=where)
        need = json.loads(done.stdout.splitlines()[-1])["smallest_fit"]
        out = ("-o", str(PLANS / f"{name}.json"))
        done = memfit("plan", "--budget", str(int(SHARE * need)), *out, script.script, "--", *script.arguments, folder=where)
        print(name, need, done.stdout, done.stderr[-2000:], flush=True)


def measure(folder: pathlib.Path, out: pathlib.Path) -> None:
    rows = json.loads(out.read_text()) if out.exists() else {}
    make_data(folder)
    (folder / "limited.py").write_text(LIMITED)
    for name, script in SCRIPTS.items():
        if name in rows:
            continue
        plan, where = PLANS / f"{name}.json", folder / script.repository
        budget = json.loads(plan.read_text())["asked"]["budget_bytes"]
        row: dict[str, Any] = {"budget": budget}
        for way, limit, before in (
            ("planned", budget, ("train", "--plan", str(plan))),
            ("as it is, limited", budget, ()),
            ("as it is", 0, ()),
        ):
            command = (sys.executable, str(folder / "limited.py"), str(limit), script.script, *script.arguments)
            began = time.monotonic()
            env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            words = [sys.executable, "-m", "memfit", *before, *command] if before else list(command)
            done = subprocess.run(words, cwd=where, capture_output=True, text=True, env=env)
            memory = re.findall(r"MEMORY (\d+) (\d+)", done.stdout)
            row[way] = {
                "status": done.returncode,
                "losses": re.findall(script.losses, done.stdout),
                "allocated_reserved": memory[-1] if memory else None,
                "seconds": round(time.monotonic() - began, 1),
                "error": "" if done.returncode == 0 else done.stderr[-1500:],
            }
        row["losses are equal"] = row["planned"]["losses"] == row["as it is"]["losses"] != []
        rows[name] = row
        out.write_text(json.dumps(rows, indent=1) + "\n")
        print(
            name,
            row["losses are equal"],
            {way: found["status"] for way, found in row.items() if isinstance(found, dict)},
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--measure", type=pathlib.Path, nargs=2, metavar=("FOLDER", "OUT"))
    given = parser.parse_args()
    if given.predict is not None:
        predict(given.predict.absolute())
    elif given.measure is not None:
        measure(given.measure[0].absolute(), given.measure[1].absolute())


if __name__ == "__main__":
    main()
