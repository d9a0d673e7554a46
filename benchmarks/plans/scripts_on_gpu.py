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
from concurrent.futures import ThreadPoolExecutor
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
torch.use_deterministic_algorithms(True)
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
    "timm": Script(
        "timm",
        "train.py",
        (
            *("pictures", "--model=vit_small_patch16_224", "--num-classes=4", "--batch-size=64", "--epochs=1", "--workers=0"),
            *("--log-interval=1", "--opt=adamw", "--amp", "--amp-dtype=bfloat16", "--no-prefetcher", "--output=out"),
        ),
        r"Loss: *[\d.]+",
    ),
    "trl": Script(
        "trl",
        "sft.py",
        (
            *("--model_name_or_path=model", "--dataset_name=texts", "--output_dir=out", "--per_device_train_batch_size=16"),
            *("--max_steps=6", "--logging_steps=1", "--save_strategy=no", "--report_to=none", "--max_length=512"),
            *("--gradient_checkpointing=False", "--bf16=True", "--disable_tqdm=True"),
        ),
        r"'loss': '?[\d.]+",
    ),
}


def make_data(folder: pathlib.Path) -> None:
    """Random tokens as nanoGPT reads them, pictures as timm does, and a small model with texts for TRL."""
    import numpy as np

    if (folder / "timm").exists():
        make_pictures(folder / "timm" / "pictures")
    if (folder / "trl").exists():
        make_model_and_texts(folder / "trl")
    data = folder / "nanoGPT" / "data" / "made_up"
    data.mkdir(exist_ok=True, parents=True)
    for part, count in (("train", 400_000), ("val", 100_000)):
        np.random.default_rng(0).integers(0, 50257, count, dtype=np.uint16).tofile(data / f"{part}.bin")


def make_pictures(folder: pathlib.Path) -> None:
    import numpy as np
    from PIL import Image

    draws = np.random.default_rng(0)
    for part, count in (("train", 80), ("validation", 16)):
        for kind in range(4):
            (folder / part / str(kind)).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = draws.integers(0, 255, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / str(kind) / f"{number}.png")


def make_model_and_texts(folder: pathlib.Path) -> None:
    import random

    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{number}": number + 3 for number in range(50_000)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / "model")
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
    config = transformers.LlamaConfig(vocab_size=50_003, num_key_value_heads=4, pad_token_id=0, eos_token_id=1, **sizes)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    random.seed(0)
    (folder / "texts").mkdir(exist_ok=True)
    rows = [{"text": " ".join(f"w{random.randrange(50_000)}" for _ in range(random.randrange(200, 500)))} for _ in range(200)]
    (folder / "texts" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def memfit(*words: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "memfit", *words], cwd=folder, capture_output=True, text=True, env=environment())


def environment() -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": paths, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1"}


def predict(folder: pathlib.Path) -> None:
    PLANS.mkdir(parents=True, exist_ok=True)
    make_data(folder)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: predict_one(name, folder), SCRIPTS))


def predict_one(name: str, folder: pathlib.Path) -> None:
    script = SCRIPTS[name]
    where = folder / script.repository
    if not where.exists():
        return
    done = memfit("run", "--json", "--steps", "3", script.script, *script.arguments, folder=where)
    if not done.stdout.strip().endswith("}"):
        print(name, "cannot be predicted:", done.stdout[-500:], done.stderr[-2000:], flush=True)
        return
    need = json.loads(done.stdout.splitlines()[-1])["smallest_fit"]
    out = ("-o", str(PLANS / f"{name}.json"))
    done = memfit("plan", "--budget", str(int(SHARE * need)), *out, script.script, "--", *script.arguments, folder=where)
    print(name, need, done.stdout, done.stderr[-2000:], flush=True)


def measure(folder: pathlib.Path, out: pathlib.Path) -> None:
    rows = json.loads(out.read_text()) if out.exists() else {}
    make_data(folder)
    (folder / "limited.py").write_text(LIMITED)
    there = [name for name, script in SCRIPTS.items() if (folder / script.repository).exists()]
    names = [name for name in there if name not in rows and (PLANS / f"{name}.json").exists()]
    with ThreadPoolExecutor() as pool:  # nothing is timed
        for name, row in zip(names, pool.map(lambda name: measure_one(name, folder), names), strict=True):
            rows[name] = row
            out.write_text(json.dumps(rows, indent=1) + "\n")


def measure_one(name: str, folder: pathlib.Path) -> dict[str, Any]:
    script, plan = SCRIPTS[name], PLANS / f"{name}.json"
    budget = json.loads(plan.read_text())["asked"]["budget_bytes"]
    row: dict[str, Any] = {"budget": budget}
    for way, limit, before in (
        ("planned", budget, ("-m", "memfit", "train", "--plan", str(plan), sys.executable)),
        ("as it is", 0, ()),
        ("as it is, limited", budget, ()),
    ):
        command = (str(folder / "limited.py"), str(limit), script.script, *script.arguments)
        began = time.monotonic()
        words, where = [sys.executable, *before, *command], folder / script.repository
        done = subprocess.run(words, cwd=where, capture_output=True, text=True, env=environment())
        memory = re.findall(r"MEMORY (\d+) (\d+)", done.stdout)
        row[way] = {
            "status": done.returncode,
            "losses": re.findall(script.losses, done.stdout + done.stderr),
            "allocated_reserved": memory[-1] if memory else None,
            "seconds": round(time.monotonic() - began, 1),
            "error": "" if done.returncode == 0 else done.stderr[-1500:],
        }
    row["losses are equal"] = row["planned"]["losses"] == row["as it is"]["losses"] != []
    print(
        name, row["losses are equal"], {way: found["status"] for way, found in row.items() if isinstance(found, dict)}, flush=True
    )
    return row


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
