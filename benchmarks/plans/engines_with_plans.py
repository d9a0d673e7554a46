"""Plans for scripts under DDP, FSDP2, Trainer, accelerate and Lightning: planned, predicted with the plan, and trained with it.

    python benchmarks/plans/engines_with_plans.py [OUT.json [ENGINE ...]]

Each script is planned to 80 % of its need as its launcher starts it. Then it is trained as it is and through ``memfit train``, on
the machine's processors (two gloo ranks where it is distributed), or on its GPU with ``--on-gpu`` (one rank). Losses must be equal
digit by digit. A script with another model is refused before its first backward pass.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = pathlib.Path(__file__).parent / "engine_scripts"
SHARE = 0.8
DISTRIBUTED = ("ddp", "fsdp2")
ENGINES = (*DISTRIBUTED, "with_trainer", "with_accelerate", "with_lightning")


def ran(*words: str, on_gpu: bool = False) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if not on_gpu:
        env["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run([sys.executable, *words], cwd=FOLDER, capture_output=True, text=True, env=env, timeout=400)


def started(name: str, ranks: int) -> list[str]:
    if name not in DISTRIBUTED:
        return [f"{name}.py"]
    return ["torchrun", "--nproc-per-node", str(ranks), "--master-port", str(29600 + ENGINES.index(name)), f"{name}.py"]


def of_one(name: str, on_gpu: bool) -> dict[str, Any]:
    began, ranks, row = time.monotonic(), 1 if on_gpu else 2, {}
    with tempfile.TemporaryDirectory() as folder:
        plan, command = f"{folder}/plan.json", started(name, 1 if on_gpu else 2)
        done = ran("-m", "memfit", "run", "--json", "--steps", "3", *command)
        need = json.loads(done.stdout.splitlines()[-1])["smallest_fit"] if done.returncode in (0, 1) and done.stdout else 0
        done = ran("-m", "memfit", "plan", "--budget", str(int(SHARE * need)), "-o", plan, *command)
        row |= {"need": need, "planned": done.returncode, "said": "" if done.returncode == 0 else done.stderr[-1500:]}
        if done.returncode == 0:
            row["plan"] = json.loads(pathlib.Path(plan).read_text())
            done = ran("-m", "memfit", "run", "--json", "--steps", "3", "--plan", plan, *command)
            row["with the plan"] = json.loads(done.stdout.splitlines()[-1])["smallest_fit"] if done.stdout else done.stderr[-1500:]
            launcher = ["-m", "torch.distributed.run", *command[1:]] if name in DISTRIBUTED else command
            bare = ran(*launcher, on_gpu=on_gpu)
            trained = ran("-m", "memfit", "train", "--plan", plan, *command, on_gpu=on_gpu)
            losses = [sorted(re.findall(r"rank \d+ loss [\d.]+", found.stdout)) for found in (bare, trained)]
            row |= {"ranks": ranks, "losses": losses, "equal": losses[0] == losses[1] != []}
            row["errors"] = ["" if found.returncode == 0 else found.stderr[-1500:] for found in (bare, trained)]
            other = "with_trainer" if name != "with_trainer" else "with_accelerate"
            refused = ran("-m", "memfit", "train", "--plan", plan, f"{other}.py", on_gpu=on_gpu)
            row["another model is refused"] = refused.returncode != 0 and "the plan is for another model" in refused.stderr
    row["seconds"] = round(time.monotonic() - began, 1)
    print(name, {key: value for key, value in row.items() if key not in ("plan", "losses")}, flush=True)
    return row


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--on-gpu"]
    on_gpu, out, names = "--on-gpu" in sys.argv, words[0] if words else "", words[1:] or list(ENGINES)
    with ThreadPoolExecutor(len(names)) as pool:
        rows = dict(zip(names, pool.map(lambda name: of_one(name, on_gpu), names), strict=True))
    if out:
        pathlib.Path(out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
