"""Whole scripts, from their first line to their last: predicted first, measured afterwards.

    python benchmarks/blind/whole_runs.py --predict              # without a GPU: results/whole_runs.json
    python benchmarks/blind/whole_runs.py --measure              # on a GPU: truth/whole_runs.json
    python benchmarks/blind/whole_runs.py --compare              # results/whole_runs.md
    python benchmarks/blind/whole_runs.py --predict leak         # some of them

The scripts are those of benchmarks/workloads/whole/, as a user would start them: ``memfit run --gpu H200 SCRIPT``, without a flag.
Each says in its first line what it does. Three were given with what an H200 did (truth/h200_whole.json), and rules were found with
these in view; the others were predicted before anything was known of them. Commit the predictions before you measure.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import runpy
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind.two_sides import Sides, main

BENCHMARKS = pathlib.Path(__file__).parents[1]
SCRIPTS = BENCHMARKS / "workloads" / "whole"
GIVEN = ("varlen", "trainer_eval", "growing")
OWN = (
    "lightning_scales",
    "accelerate_accumulation",
    "seq2seq_generation",
    "diffusion_sampling",
    "curriculum",
    "token_budget",
    "leak",
    "resume",
    "multi_crop",
    "lora_fp16",
    "features",
    "batch_finder",
    "lstm_buckets",
    "distillation",
    "scaler_accumulation",
    "rollouts",
    "contrastive",
    "adversarial",
    "trainer_function",
    "trainer_classifier",
    "trainer_preference",
    "speech_lengths",
    "vision_finetune",
    "gpt_sampling",
    "segmentation_scales",
    "bert_masked",
    "masked_images",
    "deep_speech",
    "whisper_finetune",
    "ner_tokens",
    "retrieval_cached",
    "unfreezing",
    "speech_frames",
    "checkpoint_long",
    "tasks_in_turn",
    "remembered",
    "progressive_images",
    "experts_epoch",
    "averaged_weights",
    "equations",
    "listener",
    "meta_learning",
    "molecules",
    "packed_sharded",
    "preconditioned",
    "proximal_policy",
    "radiance",
    "scanned_states",
    "longer_and_longer",
    "mixed_vit",
    "pictures_and_words",
    "point_clouds",
    "reward_pairs",
    "summaries",
    "tabular_lightning",
    "translator",
    "captioner",
    "compiled_gpt",
    "gaussian_process",
    "graph_nodes",
    "grid_search",
    "q_learning",
    "sentence_pairs",
    "style_transfer",
    "vocoder",
    "volumes",
)


def predict(case: str) -> dict:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run.memfit")
        command = [sys.executable, "-m", "memfit", "run", "--gpu", "H200", "--json", "--out", str(out), str(SCRIPTS / f"{case}.py")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS, env=environment)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1][:300]}
    said = json.loads(done.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = round(used.ru_utime + used.ru_stime, 1)
    return {
        "peak": said["peak_allocated"],
        "reserved": said["peak_reserved"],
        "covered": said.get("covered"),
        "cpu_seconds": seconds,
    }


def measure(case: str, trace: pathlib.Path | None) -> dict:
    import torch

    os.chdir(SCRIPTS)
    sys.path.insert(0, str(SCRIPTS))
    runpy.run_path(str(SCRIPTS / f"{case}.py"), run_name="__main__")
    return {"peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def measured_before(case: str) -> dict | None:
    given = json.loads((BENCHMARKS / "truth" / "h200_whole.json").read_text()).get(case)
    return given and {"peak": given["allocated"], "reserved": given["reserved"]}


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=(*GIVEN, *OWN),
    place=lambda case: (case, "0 of 1"),
    predict=predict,
    measure=measure,
    choose=lambda names: names or [*GIVEN, *OWN],
    measured_before=measured_before,
    heading=(
        "# Whole scripts on an H200",
        "",
        "What `memfit run --gpu H200 SCRIPT` says without a flag, against the peaks of the same script on an H200, in MiB. Made by",
        "`python benchmarks/blind/whole_runs.py`; the scripts are in `benchmarks/workloads/whole/`. Those with a star were given",
        "with what the GPU did; all others were predicted and committed before they were measured.",
    ),
)

if __name__ == "__main__":
    main(SIDES, __doc__)
