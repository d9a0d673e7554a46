"""Engines and libraries that were not tried before, each by a whole script: predicted first, measured afterwards.

    python benchmarks/blind/engines_blind.py --predict              # without a GPU: results/engines_blind.json
    python benchmarks/blind/engines_blind.py --measure --jobs 4     # on a GPU: truth/engines_blind.json
    python benchmarks/blind/engines_blind.py --compare              # results/engines_blind.md

Scripts of others run as they are, from ``.cache/engines/theirs``, at the commits in ``SOURCES``; small clients of libraries are in
benchmarks/workloads/engines/. Data are made up (benchmarks/workloads/engines/data.py, in ``.cache/engines/data``), and ``PACKAGES``
must be importable. Each is predicted by ``memfit run --gpu H200 --torch-version 2.11+cu130``, without another flag, and measured
in a process of its own. Commit the predictions before you measure.
"""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind.two_sides import Sides, main

BENCHMARKS = pathlib.Path(__file__).parents[1]
CLIENTS = BENCHMARKS / "workloads" / "engines"
CACHE = BENCHMARKS.parent / ".cache" / "engines"
DATA = CACHE / "data"
SOURCES = {
    "vision": "pytorch/vision@e6f04004f0e0f759b44329d9ee6751a55abf0f83",
    "cleanrl": "vwxyzjn/cleanrl@fe8d8a03c41a7ef5b523e2e354bd01c363e786bb",
    "DeepSpeedExamples": "deepspeedai/DeepSpeedExamples@45b4b7156c8794a3452a5a7d03dbd8d797068569",
}
PACKAGES = "torchvision torchaudio torch_geometric lightning accelerate gpytorch botorch torchdiffeq deepspeed==0.19.8 "
PACKAGES += "megatron-core==0.19.2 litgpt==0.5.13 e3nn==0.6.0 flash-linear-attention==0.6.0 vector-quantize-pytorch==1.32.0 "
PACKAGES += "gymnasium==0.29.1 tyro tensorboard pycocotools"


@dataclass(frozen=True)
class Script:
    """One script of others, as its words in a shell."""

    source: str
    """Whose: one of ``SOURCES``."""
    folder: str
    """Where in there it runs."""
    words: str
    """With ``{data}`` for the data that are made up, and ``{out}`` for a folder that is thrown away."""


THEIRS = {
    "vision_retinanet": Script(
        "vision",
        "references/detection",
        "train.py --data-path {data}/coco --model retinanet_resnet50_fpn_v2 --epochs 2 -b 4 -j 2 --lr 0.0001 --output-dir {out}",
    ),
    "vision_maskrcnn": Script(
        "vision",
        "references/detection",
        "train.py --data-path {data}/coco --model maskrcnn_resnet50_fpn --epochs 1 -b 4 -j 2 --lr 0.0001 --amp --output-dir {out}",
    ),
    "cleanrl_ppo": Script(
        "cleanrl",
        ".",
        "cleanrl/ppo_continuous_action.py --env-id Pendulum-v1 --total-timesteps 16384 --num-steps 1024 --num-envs 4 --seed 1",
    ),
    "cleanrl_sac": Script(
        "cleanrl", ".", "cleanrl/sac_continuous_action.py --env-id Pendulum-v1 --total-timesteps 1500 --learning-starts 1000"
    ),
    "deepspeed_bf16_master": Script(
        "DeepSpeedExamples",
        "training/bf16_master_weight",
        "train.py --deepspeed_config configs/bf16_full.json --num_steps 8 --num_layers 12 --hidden_dim 1024",
    ),
    "deepspeed_offload_states": Script(
        "DeepSpeedExamples", "training/offload_states", "offload_states.py --hidden_dim 4096 --nlayers 6 --iteration 8 --warmup 2"
    ),
    "deepspeed_gan": Script(
        "DeepSpeedExamples",
        "training/gan",
        "gan_deepspeed_train.py --local_rank 0 --dataset fake --cuda --epochs 1 --workers 2 "
        "--deepspeed_config gan_deepspeed_config.json --tensorboard_path {out}/board --outf {out}/pictures",
    ),
}
OWN = tuple(sorted(path.stem for path in CLIENTS.glob("*.py") if path.stem != "data"))


def words_of(case: str, out: str) -> tuple[pathlib.Path, list[str]]:
    """The folder in which a case runs, and its script with what follows it."""
    if case in OWN:
        return CLIENTS, [str(CLIENTS / f"{case}.py")]
    script = THEIRS[case]
    return CACHE / "theirs" / script.source / script.folder, script.words.format(data=DATA, out=out).split()


def environment_of(case: str) -> dict[str, str]:
    """What ``torchrun`` with one process would say, and nothing from the network."""
    port = 29500 + (*THEIRS, *OWN).index(case)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {
        **(alone if case.startswith(("deepspeed", "megatron")) else {}),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "WANDB_MODE": "disabled",
    }


def predict(case: str) -> dict:
    with tempfile.TemporaryDirectory() as out:
        folder, words = words_of(case, out)
        memfit = [sys.executable, "-m", "memfit", "run", "--gpu", "H200", "--torch-version", "2.11+cu130", "--json"]
        command = [*memfit, "--out", f"{out}/run.memfit", *words]
        paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=os.environ | environment_of(case) | {"PYTHONPATH": paths}
        )
    if done.returncode > 1:
        lines = done.stderr.strip().splitlines() or ["no word"]
        return {"error": next((line for line in reversed(lines) if "Error" in line), lines[-1])[:300]}
    said = json.loads(done.stdout)
    return {"peak": said["peak_allocated"], "reserved": said["peak_reserved"], "covered": said.get("covered"), "fits": said["fits"]}


def measure(case: str, trace: pathlib.Path | None) -> dict:
    """In this process. What a script's own resets of the peak would hide is kept."""
    os.environ |= environment_of(case)
    import torch

    reset, seen = torch.cuda.reset_peak_memory_stats, [0, 0]

    def keep() -> None:
        seen[0] = max(seen[0], torch.cuda.max_memory_allocated())
        seen[1] = max(seen[1], torch.cuda.max_memory_reserved())

    def kept_reset(*args: object, **kwargs: object) -> None:
        keep()
        reset(*args, **kwargs)

    torch.cuda.reset_peak_memory_stats = torch.cuda.memory.reset_peak_memory_stats = kept_reset
    with tempfile.TemporaryDirectory() as out:
        folder, words = words_of(case, out)
        os.chdir(folder)
        sys.argv = words
        sys.path[:0] = [str(pathlib.Path(words[0]).parent), str(folder)]
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
    keep()
    return {"peak": seen[0], "reserved": seen[1], "torch": torch.__version__}


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=(*THEIRS, *OWN),
    place=lambda case: (case, "0 of 1"),
    predict=predict,
    measure=measure,
    choose=lambda names: names or [*THEIRS, *OWN],
    heading=(
        "# Engines and libraries that were not tried before, on an H200",
        "",
        "What `memfit run --gpu H200 SCRIPT` says without a flag, against the peaks of the same script on an H200, in MiB. Made by",
        "`python benchmarks/blind/engines_blind.py`, which names the scripts of others; the rest is in",
        "`benchmarks/workloads/engines/`.",
        "All were predicted, and the predictions committed, before anything was measured.",
    ),
    limit_s=900,
    measured_limit_s=400,
)

if __name__ == "__main__":
    main(SIDES, __doc__)
