"""The zoo's distributed workloads, configured through ``memfit.fsdp``, predicted and compared with what an H200 did.

    python benchmarks/accuracy/fsdp_truth.py                       # every fsdp1_*, fsdp2_* and ddp* row, one fresh process each
    python benchmarks/accuracy/fsdp_truth.py fsdp2_full fsdp1_post # some of them

The same model, batch and step as ``zoo.py`` has under the same name; only what shards the model is said in memfit's words. Figures
and their meaning are those of ``accuracy.py``. Writes ``results/fsdp_truth.md``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pathlib
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from memfit.fsdp import CPUOffload, MixedPrecision, shard

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.accuracy import accuracy
from benchmarks.workloads import zoo

BOUNDS = {"peak": 0.03, "reserved": 0.06, "fit": 0.06}
"""How far off a figure may be, at worst."""

BILLION = zoo.LlamaArgs(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632)
BF16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASTING = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
"""FSDP2's own default: every unit casts what it is given."""
RESHARD_ALL = {"engine_options": {"reshard_after_forward": True}}
"""The zoo reshards the model itself as well, which neither engine does of its own accord."""

Build = Callable[[str], zoo.Run]


def fsdp2(args: zoo.LlamaArgs = BILLION, batch: int = 2, accum: int = 1, **words: Any) -> Build:
    def build(device: str) -> zoo.Run:
        with torch.device("meta"):
            model = zoo.Llama(args)
        model = shard(model, **{"mixed_precision": CASTING, **words})
        model.to_empty(device="cpu" if "cpu_offload" in words else device)
        model.cos, model.sin = model.cos.to(device), model.sin.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = zoo.lm_batch(args, batch, device)
        return zoo.Run(model, optimizer, zoo.lm_step(model, optimizer, tokens, labels, accum, clip=1.0), fsdp=True)

    return build


def fsdp1(**words: Any) -> Build:
    def build(device: str) -> zoo.Run:
        with torch.device(device):
            model = zoo.Llama(BILLION)
        model = shard(model, engine="fsdp1", mixed_precision=BF16, **words)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = zoo.lm_batch(BILLION, 2, device)
        return zoo.Run(model, optimizer, zoo.lm_step(model, optimizer, tokens, labels), fsdp=True)

    return build


def ddp(**options: Any) -> Build:
    def build(device: str) -> zoo.Run:
        args = zoo.LlamaArgs()
        with torch.device(device):
            model = zoo.Llama(args)
        model = shard(model, "no_shard", engine_options=options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens, labels = zoo.lm_batch(args, 4, device)
        return zoo.Run(model, optimizer, zoo.lm_step(model, optimizer, tokens, labels, autocast=torch.bfloat16))

    return build


def llama3(dim: int, layers: int, heads: int, hidden: int, seq: int, checkpointing: str | None = "full") -> Build:
    args = zoo.LlamaArgs(dim=dim, layers=layers, heads=heads, kv_heads=8, hidden=hidden, vocab=128256, seq=seq)
    return fsdp2(args, batch=1, checkpointing=checkpointing, **RESHARD_ALL)


SPOKEN: dict[str, Build] = {
    "fsdp2_full": fsdp2(**RESHARD_ALL),
    "fsdp2_zero2": fsdp2(strategy="shard_grad_op"),
    "fsdp2_hsdp": fsdp2(strategy="hybrid_shard", mesh=(2, 4), **RESHARD_ALL),
    "fsdp2_fp32": fsdp2(mixed_precision=None, **RESHARD_ALL),
    "fsdp2_ckpt": fsdp2(batch=4, checkpointing="full", **RESHARD_ALL),
    "fsdp2_offload": fsdp2(cpu_offload=CPUOffload(offload_params=True), **RESHARD_ALL),
    "fsdp2_accum": fsdp2(accum=2, **RESHARD_ALL),
    "fsdp2_64": fsdp2(**RESHARD_ALL),
    "ddp": ddp(),
    "ddp_view": ddp(gradient_as_bucket_view=True),
    "fsdp1_full": fsdp1(),
    "fsdp1_zero2": fsdp1(strategy="shard_grad_op"),
    "fsdp1_noshard": fsdp1(strategy="no_shard"),
    "fsdp1_post": fsdp1(backward_prefetch="backward_post"),
    "fsdp2_llama3_8b_w8": llama3(4096, 32, 32, 14336, 8192),
    "fsdp2_llama3_8b_w8_nockpt": llama3(4096, 32, 32, 14336, 4096, checkpointing=None),
    "fsdp2_llama3_70b_w64": llama3(8192, 80, 64, 28672, 4096),
    "fsdp2_llama3_405b_w512": llama3(16384, 126, 128, 53248, 4096),
}


def predict_one(name: str) -> dict[str, Any]:
    """In a process of its own: the zoo's row, in our words."""
    zoo.ZOO[name] = SPOKEN[name]
    try:
        return accuracy.predict_one(name, "zoo")
    except Exception as error:
        return {"name": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}


def out_of_bounds(rows: list[dict[str, Any]]) -> list[str]:
    found = [f"{row['name']}: {row['error']}" for row in rows if "error" in row]
    for row in rows:
        for figure, bound in BOUNDS.items() if "error" not in row else ():
            true = row[f"true_{figure}"]
            if true and abs(row[figure] / true - 1) > bound:
                found.append(f"{row['name']}: {figure} off by {accuracy.percent(row[figure] / true - 1)}")
    return found


def verdict(rows: list[dict[str, Any]]) -> str:
    bounds = ", ".join(f"{figure} {100 * bound:.0f} %" for figure, bound in BOUNDS.items())
    return f"Out of bounds ({bounds}): {'; '.join(out_of_bounds(rows)) or 'none'}."


def main() -> None:
    assert set(SPOKEN) == {name for name in accuracy.truth_of("zoo") if name.startswith(zoo.DISTRIBUTED)}, "rows without words"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(SPOKEN))
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    args = parser.parse_args()
    rows = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        for found in pool.map(predict_one, args.workloads):
            rows.append(found)
            print(accuracy.row(found), flush=True)
    lines = [
        line.replace("benchmarks/accuracy/accuracy.py", "benchmarks/accuracy/fsdp_truth.py") for line in accuracy.table(rows, "zoo")
    ]
    lines.append(verdict(rows))
    if args.workloads == list(SPOKEN):
        (accuracy.BENCHMARKS / "results" / "fsdp_truth.md").write_text("\n".join(lines) + "\n")
    print("\n".join(["", *accuracy.summary(rows), verdict(rows)]))


if __name__ == "__main__":
    main()
