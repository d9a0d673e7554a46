"""FSDP2's copies between shards and whole tensors, as they are priced and as an H200 runs them.

    python benchmarks/timing/shard_copies.py --predict         # anywhere: writes results/shard_copies.json
    python benchmarks/timing/shard_copies.py --measure FILE    # on an H200
    python benchmarks/timing/shard_copies.py --compare FILE    # anywhere

Of a layer of Llama-3 8B and of one with experts, on 8 and on 64 GPUs. No group is needed: one GPU makes the copies of its own rank.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "shard_copies.json"
LAYERS = {
    "llama3-8b": [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3,
    "experts": [(128, 2048, 1536), (128, 768, 2048)],
}
WORLDS = (8, 64)
WARM_UP, TIMES = 3, 10


def calls_of(layer: str, world: int) -> dict[str, Any]:
    """Makes the tensors, and returns what runs each copy."""
    import torch
    import torch.distributed.fsdp._fully_shard._fsdp_collectives

    parts = [torch.Size(shape).numel() // world for shape in LAYERS[layer]]
    shards = [torch.empty(part, dtype=torch.bfloat16, device="cuda") for part in parts]
    gathered = torch.empty(sum(parts) * world, dtype=torch.bfloat16, device="cuda")
    whole = [torch.empty(world, part, dtype=torch.bfloat16, device="cuda") for part in parts]
    gradients = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in LAYERS[layer]]
    reduced = torch.empty(world, sum(parts), dtype=torch.float32, device="cuda")
    fsdp = torch.ops.fsdp
    return {
        "all_gather_copy_in": lambda: fsdp.all_gather_copy_in(shards, gathered, parts, sum(parts), 0),
        "split_with_sizes_copy": lambda: fsdp.split_with_sizes_copy(gathered.view(world, -1), parts, dim=1, out=whole),
        "chunk_cat": lambda: fsdp.chunk_cat(gradients, dim=0, num_chunks=world, out=reduced),
    }


def priced(layer: str, world: int) -> dict[str, float]:
    """Microseconds."""
    from memfit.hardware import find_gpu
    from memfit.timing.operators.calls import Call, Operand
    from memfit.timing.operators.prices import price

    numbers = sum(_numel(shape) for shape in LAYERS[layer])
    own, whole = Operand("bf16", (numbers // world,)), Operand("bf16", (numbers,))
    calls = {
        "all_gather_copy_in": Call("fsdp::all_gather_copy_in", ((own,), whole), (own, whole)),
        "split_with_sizes_copy": Call("fsdp::split_with_sizes_copy", (whole,), ()),
        "chunk_cat": Call("fsdp::chunk_cat", ((whole,),), ()),
    }
    return {name: round(1e6 * price(call, find_gpu("H200")).seconds, 1) for name, call in calls.items()}


def _numel(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def measured(layer: str, world: int) -> dict[str, float]:
    """Microseconds, on average of calls in a row."""
    import torch

    found = {}
    for name, call in calls_of(layer, world).items():
        for _ in range(WARM_UP):
            call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(TIMES):
            call()
        end.record()
        torch.cuda.synchronize()
        found[name] = round(1e3 * begin.elapsed_time(end) / TIMES, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--compare", type=Path)
    given = parser.parse_args()
    rows = [(layer, world) for layer in LAYERS for world in WORLDS]
    if given.predict or given.measure:
        found = {f"{layer}, {world}": (priced if given.predict else measured)(layer, world) for layer, world in rows}
        (RESULTS if given.predict else given.measure).write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found, indent=1))
    if given.compare:
        predicted, truth = json.loads(RESULTS.read_text()), json.loads(given.compare.read_text())
        for row, copies in truth.items():
            for name, seconds in copies.items():
                print(f"{row:16s} {name:24s} {predicted[row][name]:9.1f} {seconds:9.1f} {predicted[row][name] / seconds - 1:+.0%}")


if __name__ == "__main__":
    main()
