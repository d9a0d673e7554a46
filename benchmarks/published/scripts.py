"""Rows whose whole script is public: Megatron-LM's tests and modded-nanogpt's records. ``memfit run`` runs it as it is.

Both need a checkout (``run.py --checkouts FOLDER``, with ``Megatron-LM`` and ``modded-nanogpt`` in it). Of Megatron-LM commit
d98e8a64dd wants Python 3.12, its Transformer Engine 2.16, and megatron/core/datasets built once.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks.blind.megatron_goldens import VOCABULARY, flags_of
from benchmarks.published import modded_nanogpt
from benchmarks.published.cases import Case

MIB = 2**20
MACHINES = {"gb200": "GB200", "h100": "H100-80GB", "a100": "A100-80GB", "lts": "A100-80GB"}
"""By a part of the name that Megatron-LM gives a machine; the first that fits."""
CONTAINERS = {
    "lts_dgx_a100": "2.9 (NGC 25.09)",
    "dev_dgx_a100": "2.10 to 2.12 (NGC 26.02 to 26.06)",
    "dev_dgx_h100": "2.10 to 2.12 (NGC 26.02 to 26.06)",
    "dev_dgx_gb200": "2.10 to 2.12 (NGC 26.02 to 26.06)",
}
"""By the beginning of that name; the others are of containers before 25.09."""
SCRIPTS = {
    "gpt": "pretrain_gpt.py",
    "moe": "pretrain_gpt.py",
    "mixtral": "pretrain_gpt.py",
    "bert": "examples/bert/pretrain_bert.py",
    "t5": "examples/t5/pretrain_t5.py",
    "hybrid": "pretrain_hybrid.py",
    "nemotron": "pretrain_hybrid.py",
}
HOST_PACE = "a step of some tens of milliseconds, all of it the host's Python, on a machine that nobody names"
SLOW_HOST = "steps of the smallest models take its machines 0.6 to 2 s, and those with H100s 0.1 to 0.3: the time is the host's"
"""With GB200s: of gpt3_mcore_te_tp4_pp1_dist_optimizer_overlap_grad_reduce_param_gather 2.19 and 0.33 s, and so on."""
LARGE_MODEL = "_7b_"
"""In the name of a test whose steps are not the host's alone."""
SECONDS = 900


def read_golden(row: Mapping[str, str]) -> Case:
    """Of Megatron-LM's functional tests; the figures are of the last rank, which writes the logs."""
    gpu = next((gpu for part, gpu in MACHINES.items() if part in row["gpu"]), "")
    name, torch = f"megatron {row['family']}/{row['case']} {row['gpu']}", "2.8 or older"
    torch = next((said for part, said in CONTAINERS.items() if row["gpu"].startswith(part)), torch)
    why = ""
    if not gpu:
        why = f"which GPU {row['gpu']!r} means is not said"
    elif row["family"] not in SCRIPTS:
        why = f"{row['family']}: its script is not run here"
    elif not row["max_allocated"]:
        why = "it says no memory"
    elif row["fp8"]:
        why = "float8 recipes of Transformer Engine are refused"
    world = 4 if "1node" in row["case"] and gpu == "GB200" else 8
    source = f"github.com/NVIDIA/Megatron-LM, {row['path']}"
    if why:
        return Case(name=name, gpu=gpu, torch=torch, source=source, why_not=why)
    return Case(
        name=name,
        gpu=gpu,
        torch=torch,
        num_gpus=world,
        kind="script",
        words={"of": "Megatron-LM", "folder": row["path"].rpartition("/")[0], "family": row["family"]},
        units_per_step=1.0,
        per_second=1 / float(row["step_s"]) if row["step_s"] else 0.0,
        memory={"allocated": int(row["max_allocated"])},
        time_note=_why_time_is_not_judged(row, gpu),
        source=source,
    )


def _why_time_is_not_judged(row: Mapping[str, str], gpu: str) -> str:
    if row["step_s"] and float(row["step_s"]) < 0.5:
        return HOST_PACE
    return SLOW_HOST if gpu == "GB200" and LARGE_MODEL not in row["case"] else ""


def read_record(row: Mapping[str, str]) -> Case:
    """Of modded-nanogpt: logs of one folder are runs of one script, so all of them are predicted by the folder's first log."""
    folder, num_gpus = row["path"].rpartition("/")[0], int(row["n"])
    gpu = "H200" if row["gpu"] == "H200" else "H100-80GB"
    return Case(
        name=f"modded-nanogpt {row['path'].removeprefix('records/')}",
        gpu=gpu,
        torch=row["torch"],
        num_gpus=num_gpus,
        kind="script",
        words={"of": "modded-nanogpt", "folder": folder},
        units_per_step=1.0,
        per_second=1000 / float(row["step_ms"]) if row["step_ms"] else 0.0,
        memory={"allocated": int(row["peak"]) * MIB, "reserved": int(row["reserved"]) * MIB},
        torch_version="2.11+cu130",
        memory_note="what NCCL holds differs from run to run of one folder" if num_gpus > 1 else "",
        source=f"github.com/KellerJordan/modded-nanogpt, {row['path']}",
    )


def predict_script(case: Case, checkouts: pathlib.Path) -> dict[str, Any]:
    """As ``run.predict_here``. Raises ``LookupError`` where its checkout is missing."""
    place = checkouts / case.words["of"]
    if not place.exists():
        raise LookupError(f"needs a checkout of {case.words['of']} in the folder of --checkouts")
    found = _golden(case, place) if case.words["of"] == "Megatron-LM" else _record(case, place)
    return {
        "peak_allocated": found["peak_allocated"],
        "peak_reserved": found["peak_reserved"],
        "context": found["context"],
        "fits": found["fits"],
        "step_seconds": found.get("step_seconds"),
        "per_second": 1 / found["step_seconds"] if found.get("step_seconds") else None,
        "basis": str(found.get("time", ""))[:80],
    }


def _run(arguments: list[str], where: pathlib.Path, environment: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "memfit", "run", "--json", *arguments],
        cwd=where,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("{")), "")
    if not line:
        raise RuntimeError(done.stderr.strip()[-300:])
    found: dict[str, Any] = json.loads(line)
    return found.get("ranks", [found])[0]


def _golden(case: Case, place: pathlib.Path) -> dict[str, Any]:
    environment, flags = flags_of((place / case.words["folder"] / "model_config.yaml").read_text())
    if any(flag.startswith(("--fp8", "--fp4")) for flag in flags):
        raise RuntimeError("float8 recipes of Transformer Engine are refused")
    added = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "2", "--eval-iters", "0"]
    added += [] if "--vocab-size" in flags else ["--vocab-size", str(VOCABULARY)]
    world = case.num_gpus
    environment |= {"MEMFIT_INSTALLED": "apex,flash_attn", "PYTHONPATH": str(place)}
    with tempfile.TemporaryDirectory() as scratch:
        asked = ["--gpu", case.gpu, "--nproc", str(world), "--rank", str(world - 1), "--max-seconds", "0"]
        asked += ["--out", f"{scratch}/run.memfit", SCRIPTS[case.words["family"]]]
        return _run([*asked, *flags, *added], place, environment)


def _record(case: Case, place: pathlib.Path) -> dict[str, Any]:
    log = next(path for path in sorted((place / case.words["folder"]).glob("*.txt")) if "=" * 100 in path.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        modded_nanogpt.write_scripts(log.read_text(), folder)
        modded_nanogpt.write_data(folder / "data" / "fineweb10B")
        (folder / "logs" / "v1").mkdir(parents=True)
        asked = ["--gpu", case.gpu, "--nproc", str(case.num_gpus), "--torch-version", case.torch_version]
        asked += ["--max-seconds", str(SECONDS - 60), "--steps", str(modded_nanogpt.STEPS), "--out", str(folder / "run.memfit")]
        found = _run([*asked, "train_gpt.py"], folder, {"DATA_PATH": "."})
    if re.search("no training step", found.get("problem", "")):
        raise RuntimeError(found["problem"])
    return found
