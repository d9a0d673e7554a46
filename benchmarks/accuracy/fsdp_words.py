"""What each word of ``memfit.fsdp`` costs and saves: Llama-3 8B on eight H100s, predicted.

    python benchmarks/accuracy/fsdp_words.py                  # all of them: results/fsdp_words.md
    python benchmarks/accuracy/fsdp_words.py "FULL_SHARD"     # those whose name has it, on the terminal

One sequence of 8,192 tokens a GPU, AdamW, two training steps; then, for state dicts, one of model and optimizer. Every row is the
first one with one thing changed. Each is predicted in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pathlib
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn

import memfit
from memfit.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
    shard,
    state_dict,
)
from memfit.models import find_model
from memfit.models.transformer import Transformer

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "fsdp_words.md"
MODEL, GPU, WORLD, TOKENS, STEPS = "llama3-8b", "H100-80GB", 8, 8192, 2
GIB = 2**30
LOW = partial(MixedPrecision, param_dtype=torch.bfloat16)
BASE: dict[str, Any] = {"mixed_precision": LOW(reduce_dtype=torch.float32), "checkpointing": "full"}


@dataclass(frozen=True)
class Word:
    """One row: what is said, and what is saved at the end."""

    changes: dict[str, Any] = field(default_factory=dict)
    saves: StateDictSettings | None = None


def full(offload: bool) -> StateDictSettings:
    return StateDictSettings(
        StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload, offload), FullOptimStateDictConfig(offload, offload)
    )


def sharded(offload: bool) -> StateDictSettings:
    return StateDictSettings(
        StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload), ShardedOptimStateDictConfig(offload)
    )


def both(name: str, *, saves: StateDictSettings | None = None, **changes: Any) -> dict[str, Word]:
    """The same on FSDP2 and FSDP1."""
    return {f"{name}, FSDP{number}": Word({"engine": f"fsdp{number}", **changes}, saves) for number in (2, 1)}


def on_fsdp1(**precision: Any) -> Word:
    return Word({"engine": "fsdp1", "mixed_precision": LOW(**precision)})


SECTIONS: dict[str, dict[str, Word]] = {
    "ShardingStrategy": {
        **both("FULL_SHARD"),
        **both("SHARD_GRAD_OP", strategy="shard_grad_op"),
        **both("HYBRID_SHARD, mesh (2, 4)", strategy="hybrid_shard", mesh=(2, 4)),
        **both("_HYBRID_SHARD_ZERO2, mesh (2, 4)", strategy="hybrid_shard_zero2", mesh=(2, 4)),
        "NO_SHARD, DDP under autocast": Word({"strategy": "no_shard", "mixed_precision": None}),
        **both("NO_SHARD", strategy="no_shard"),
    },
    "BackwardPrefetch": {
        **both("BACKWARD_POST", backward_prefetch="backward_post"),
        **both("no prefetch", backward_prefetch=None),
    },
    "MixedPrecision": {
        "none: float32": Word({"mixed_precision": None}),
        "param_dtype=bfloat16, reduce_dtype=bfloat16": Word({"mixed_precision": LOW(reduce_dtype=torch.bfloat16)}),
        "the same, FSDP1": on_fsdp1(reduce_dtype=torch.bfloat16),
        "keep_low_precision_grads with it, FSDP1": on_fsdp1(reduce_dtype=torch.bfloat16, keep_low_precision_grads=True),
        "buffer_dtype=bfloat16, FSDP1": on_fsdp1(reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16),
        "cast_forward_inputs": Word({"mixed_precision": LOW(reduce_dtype=torch.float32, cast_forward_inputs=True)}),
        "module_classes_to_ignore=(RMSNorm,)": Word(
            {"mixed_precision": LOW(reduce_dtype=torch.float32, module_classes_to_ignore=(nn.RMSNorm,))}
        ),
    },
    "CPUOffload": both("offload_params", cpu_offload=CPUOffload(offload_params=True)),
    "Activation checkpointing": {
        "checkpointing=None": Word({"checkpointing": None}),
        "checkpointing='selective'": Word({"checkpointing": "selective"}),
        "checkpointing='full'": Word(),
    },
    "Units": {
        "units=None: the repeated blocks": Word(),
        "units=10,000,000: by size": Word({"units": 10_000_000}),
        "no units but the model": Word({"units": lambda module: False}),
    },
    "StateDictType": {
        **both("FULL_STATE_DICT", saves=full(offload=False)),
        **both("FULL_STATE_DICT, offload_to_cpu, rank0_only", saves=full(offload=True)),
        **both("SHARDED_STATE_DICT", saves=sharded(offload=False)),
        **both("SHARDED_STATE_DICT, offload_to_cpu", saves=sharded(offload=True)),
        "LOCAL_STATE_DICT, FSDP1 without a mesh": Word(
            {"engine": "fsdp1", "engine_options": {"device_mesh": None}}, StateDictSettings(StateDictType.LOCAL_STATE_DICT)
        ),
    },
}
ROWS = {(section, name): word for section, words in SECTIONS.items() for name, word in words.items()}


def sharded_model(words: dict[str, Any]) -> nn.Module:
    home = "cpu" if "cpu_offload" in words else "cuda"
    with torch.device("cuda" if words.get("strategy") == "no_shard" and not words.get("engine") else "meta"):
        model: nn.Module = Transformer(find_model(MODEL))
    if words.get("engine") == "fsdp1":
        give = {"param_init_fn": lambda module: module.to_empty(device=home, recurse=False)}
        words = words | {"engine_options": give | words.get("engine_options", {})}
    model = shard(model, **words)
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=home)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to("cuda"))
    return model


def build(word: Word) -> Callable[[], None]:
    dist.init_process_group("nccl")
    model = sharded_model(BASE | word.changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, labels = torch.randint(0, 1000, (2, 1, TOKENS), device="cuda")
    autocast = (BASE | word.changes)["mixed_precision"] is None and isinstance(model, nn.parallel.DistributedDataParallel)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > STEPS:
            state_dict(model, optimizer, word.saves)
            return
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def predict(key: tuple[str, str]) -> dict[str, Any]:
    warnings.filterwarnings("ignore")
    word = ROWS[key]
    try:
        prediction = memfit.predict(partial(build, word), gpu=GPU, world_size=WORLD, steps=STEPS + (word.saves is not None))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"}
    peaks = [int(step.peak_allocated) for step in prediction.steps]
    return {
        "training": max(peaks[:STEPS]),
        "save": peaks[-1] if word.saves else 0,
        "reserved": int(prediction.peak_reserved),
        "fit": int(prediction.smallest_fit),
        "fits": prediction.fits,
    }


def gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size else ""


def row(name: str, found: dict[str, Any], base: dict[str, Any]) -> str:
    if "error" in found:
        return f"| {name} | {found['error']} | | | | | |"
    against = f"{(found['training'] - base['training']) / GIB:+.2f}".replace("+0.00", "").replace("-0.00", "")
    return (
        f"| {name} | {gib(found['training'])} | {against} | {gib(found['save'])} | {gib(found['reserved'])} | {gib(found['fit'])} "
        f"| {'yes' if found['fits'] else 'no'} |"
    )


def table(found: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    base = next(iter(found.values()))
    lines = [
        f"{MODEL} on {WORLD} x {GPU}, one sequence of {TOKENS:,} tokens a GPU, AdamW, predicted:",
        "`python benchmarks/accuracy/fsdp_words.py`.",
        "Every row is the first (FULL_SHARD on FSDP2, bfloat16, float32 reduction, full checkpointing) with one thing changed.",
        "GiB: the allocated peak of training, what that is more or less than the first row, the allocated peak while saving, the",
        "reserved peak, the smallest GPU memory with which it runs, and whether it does on this GPU.",
    ]
    for section in dict.fromkeys(section for section, _ in found):
        lines += [
            "",
            f"### {section}",
            "",
            "| | training | change | saving | reserved | smallest fit | fits |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [row(name, each, base) for (of, name), each in found.items() if of == section]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="", help="rows whose name has this")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    args = parser.parse_args()
    chosen = [key for key in ROWS if args.name in key[1]]
    context = multiprocessing.get_context("spawn")
    found = {}
    with ProcessPoolExecutor(args.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        for key, each in zip(chosen, pool.map(predict, chosen), strict=True):
            found[key] = each
            print(key, each, flush=True)
    lines = table(found)
    print("\n".join(["", *lines]))
    if not args.name:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
