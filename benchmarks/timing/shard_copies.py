"""FSDP2's copies between shards and whole tensors, as they are priced and as an H200 runs them.

    python benchmarks/timing/shard_copies.py --predict         # anywhere: writes results/shard_copies.json
    python benchmarks/timing/shard_copies.py --measure         # on an H200: writes truth/shard_copies.json
    python benchmarks/timing/shard_copies.py                   # anywhere: compares them

The rule was found with a layer of Llama-3 8B and one with experts; those of other models took no part. No group is needed: one GPU
makes the copies of its own rank, of 8 and of 64. Only kernels count.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

RESULTS, TRUTH = (Path(__file__).parents[1] / folder / "shard_copies.json" for folder in ("results", "truth"))
LAYERS = {
    "llama3-8b": [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3,
    "experts": [(128, 2048, 1536), (128, 768, 2048)],
    "gpt2-xl": [(4800, 1600), (4800,), (1600, 1600), (1600,), (6400, 1600), (6400,), (1600, 6400), (1600,), *[(1600,)] * 4],
    "llama3-70b": [(8192, 8192)] * 2 + [(1024, 8192)] * 2 + [(28672, 8192)] * 3,
    "t5-large": [(1024, 1024)] * 4 + [(4096, 1024)] * 2 + [(1024,)] * 2,
    "vit-h": [(3840, 1280), (1280, 1280), (5120, 1280), (1280, 5120), *[(1280,)] * 6],
}
WORLDS = (8, 64)
REDUCED = ("float32", "bfloat16")
"""The types in which gradients of bfloat16 are reduced."""
WARM_UP, TIMES = 3, 10


def calls_of(layer: str, world: int) -> dict[str, Any]:
    """Makes the tensors, and returns what runs each copy."""
    import torch
    import torch.distributed.fsdp._fully_shard._fsdp_collectives

    parts = [_numel(shape) // world for shape in LAYERS[layer]]
    shards = [torch.empty(part, dtype=torch.bfloat16, device="cuda") for part in parts]
    gathered = torch.empty(sum(parts) * world, dtype=torch.bfloat16, device="cuda")
    whole = [torch.empty(world, part, dtype=torch.bfloat16, device="cuda") for part in parts]
    gradients = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in LAYERS[layer]]
    rows = sum(_numel((-(-shape[0] // world), *shape[1:])) for shape in LAYERS[layer])
    fsdp = torch.ops.fsdp

    def cut(kind: str) -> Any:
        reduced = torch.empty(world, rows, dtype=getattr(torch, kind), device="cuda")
        return lambda: fsdp.chunk_cat(gradients, dim=0, num_chunks=world, out=reduced)

    return {
        "all_gather_copy_in": lambda: fsdp.all_gather_copy_in(shards, gathered, parts, sum(parts), 0),
        "split_with_sizes_copy": lambda: fsdp.split_with_sizes_copy(gathered.view(world, -1), parts, dim=1, out=whole),
        **{f"chunk_cat, {kind}": cut(kind) for kind in REDUCED},
    }


def priced(layer: str, world: int) -> dict[str, float]:
    """Microseconds."""
    from memfit.hardware import find_gpu
    from memfit.timing.operators.calls import Call, Operand
    from memfit.timing.operators.prices import price

    shapes = LAYERS[layer]
    own, whole = (
        tuple(Operand("bf16", (_numel(shape) // world,)) for shape in shapes),
        tuple(Operand("bf16", shape) for shape in shapes),
    )
    gathered = Operand("bf16", (sum(map(_numel, shapes)),))
    calls = {
        "all_gather_copy_in": Call("fsdp::all_gather_copy_in", (own, gathered), (own[0], gathered)),
        "split_with_sizes_copy": Call("fsdp::split_with_sizes_copy", (gathered,), whole),
        **{
            f"chunk_cat, {kind}": Call("fsdp::chunk_cat", (whole,), (Operand(short, gathered.shape),))
            for kind, short in zip(REDUCED, ("f32", "bf16"), strict=True)
        },
    }
    return {name: round(1e6 * price(call, find_gpu("H200")).seconds, 1) for name, call in calls.items()}


def _numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def measured(layer: str, world: int) -> dict[str, float]:
    """Microseconds of all kernels of a call, on average."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    found = {}
    for name, call in calls_of(layer, world).items():
        for _ in range(WARM_UP):
            call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(TIMES):
                call()
            torch.cuda.synchronize()
        kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        found[name] = round(sum(event.device_time for event in kernels) / TIMES, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--predict", action="store_true")
    ways.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    rows = [(layer, world) for layer in LAYERS for world in WORLDS]
    if given.predict or given.measure:
        found = {f"{layer}, {world}": (priced if given.predict else measured)(layer, world) for layer, world in rows}
        (RESULTS if given.predict else TRUTH).write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found, indent=1))
        return
    predicted, truth = json.loads(RESULTS.read_text()), json.loads(TRUTH.read_text())
    for row, copies in truth.items():
        for name, us in copies.items():
            print(f"{row:16s} {name:24s} {predicted[row][name]:9.1f} {us:9.1f} us {predicted[row][name] / us - 1:+.0%}")


if __name__ == "__main__":
    main()
