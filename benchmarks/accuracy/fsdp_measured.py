"""What the words of ``memfit.fsdp`` cost on a real GPU, beside what memfit says without one.

    python benchmarks/accuracy/fsdp_measured.py --measure            # on a machine with a GPU: results/fsdp_measured.json
    python benchmarks/accuracy/fsdp_measured.py                      # anywhere: predicts the same cases, results/fsdp_measured.md
    python benchmarks/accuracy/fsdp_measured.py --measure fsdp1_keep # some of them; merged into what was measured before

One case is rank 0 of eight, on torch's fake process group, in a process of its own: two training steps, then for some cases a state
dict of model and optimizer. What FSDP1 would be told by the other ranks about their state is answered as the phantom world does it
(``engines/fsdp1/wrapping.py``): Python objects, no GPU memory. The parent must not touch CUDA: children are forked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

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

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.workloads import zoo

BENCHMARKS = pathlib.Path(__file__).parents[1]
MEASURED = BENCHMARKS / "results" / "fsdp_measured.json"
MIB = 2**20
WORLD, STEPS = 8, 2
ARGS = zoo.LlamaArgs(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632)
FEW_TOKENS = zoo.LlamaArgs(dim=4096, layers=8, heads=32, kv_heads=8, hidden=14336, vocab=2048, seq=512)
"""Blocks as in Llama-3 8B, and little else: the peak is where parameters and gradients are whole."""
BF16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@dataclass(frozen=True)
class Case:
    words: dict[str, Any] = field(default_factory=dict)
    saves: StateDictSettings | None = None
    sgd: bool = False
    few_tokens: bool = False


def full(offload: bool) -> StateDictSettings:
    """As people save: whole on every GPU, or whole in the memory of rank 0's host."""
    return StateDictSettings(
        StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload, offload), FullOptimStateDictConfig(offload, offload)
    )


def sharded(offload: bool) -> StateDictSettings:
    return StateDictSettings(
        StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload), ShardedOptimStateDictConfig(offload)
    )


def fsdp1_sharded(offload: bool, **options: Any) -> Case:
    """Without a mesh FSDP1 makes ShardedTensors, with one DTensors."""
    return Case({"engine": "fsdp1", "engine_options": options}, sharded(offload))


def keep(kept: bool) -> Case:
    low = MixedPrecision(torch.bfloat16, torch.bfloat16, keep_low_precision_grads=kept)
    return Case({"engine": "fsdp1", "mixed_precision": low}, sgd=True, few_tokens=True)


ENGINES = ("fsdp2", "fsdp1")
HYBRID = {"mesh": (2, 4)}
CASES: dict[str, Case] = {
    "fsdp2_full_state": Case({"engine": "fsdp2"}, full(offload=False)),
    "fsdp2_full_state_offload": Case({"engine": "fsdp2"}, full(offload=True)),
    "fsdp2_sharded_state": Case({"engine": "fsdp2"}, sharded(offload=False)),
    "fsdp2_sharded_state_offload": Case({"engine": "fsdp2"}, sharded(offload=True)),
    "fsdp1_full_state": Case({"engine": "fsdp1"}, full(offload=False)),
    "fsdp1_full_state_offload": Case({"engine": "fsdp1"}, full(offload=True)),
    "fsdp1_sharded_state": fsdp1_sharded(offload=False, device_mesh=None),
    "fsdp1_sharded_state_offload": fsdp1_sharded(offload=True, device_mesh=None),
    "fsdp1_sharded_mesh": fsdp1_sharded(offload=False),
    "fsdp1_sharded_mesh_offload": fsdp1_sharded(offload=True),
    "fsdp1_hybrid": Case({"engine": "fsdp1", "strategy": "hybrid_shard", **HYBRID}),
    "fsdp1_hybrid_zero2": Case({"engine": "fsdp1", "strategy": "hybrid_shard_zero2", **HYBRID}),
    "fsdp2_hybrid_zero2": Case({"engine": "fsdp2", "strategy": "hybrid_shard_zero2", **HYBRID}),
    **{
        f"{engine}_prefetch_{name}": Case({"engine": engine, "backward_prefetch": prefetch}, few_tokens=True)
        for engine in ENGINES
        for name, prefetch in (("pre", "backward_pre"), ("post", "backward_post"), ("none", None))
    },
    "fsdp1_keep": keep(True),
    "fsdp1_keep_not": keep(False),
    "fsdp1_offload": Case({"engine": "fsdp1", "cpu_offload": CPUOffload(offload_params=True)}),
    "fsdp2_no_shard": Case({"engine": "fsdp2", "strategy": "no_shard"}),
    "fsdp2_selective": Case({"engine": "fsdp2", "checkpointing": "selective"}),
    "fsdp1_checkpoint": Case({"engine": "fsdp1", "checkpointing": "full"}),
}


def build(case: Case) -> tuple[Callable[[], int], Callable[[], Any]]:
    """A training step, which gives what is allocated after its backward, and the making of a state dict."""
    args, batch = (FEW_TOKENS, 1) if case.few_tokens else (ARGS, 2)
    with torch.device("cuda"):
        model = zoo.Llama(args)
    model = shard(model, **{"mixed_precision": BF16, **case.words})
    torch.cuda.empty_cache()  # the whole model was there
    kind = torch.optim.SGD if case.sgd else torch.optim.AdamW
    # With gradients in another type than their parameters, optimizers that take whole lists of tensors do not work.
    optimizer = kind(model.parameters(), lr=1e-4, foreach=False if case.sgd else None)
    tokens, labels = zoo.lm_batch(args, batch, "cuda")
    marked_step = zoo.lm_step(model, optimizer, tokens, labels)

    def step() -> int:
        levels: dict[str, int] = {}
        marked_step(lambda mark: levels.update({mark: torch.cuda.memory_allocated()}))
        return levels["backward"]

    return step, lambda: state_dict(model, optimizer, case.saves)


# -- measuring -----------------------------------------------------------------------------------------------------------------


def join_fake_world() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from memfit.engines.fsdp1 import wrapping
    from memfit.torch_compat.patches import Patches

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    wrapping.install(Patches("the benchmark"))

    def all_gather_object(gathered: list[Any], mine: Any, group: Any = None) -> None:
        gathered[:] = [mine] * len(gathered)

    dist.all_gather_object = dist.distributed_c10d.all_gather_object = all_gather_object


def peak_of(work: Callable[[], Any]) -> tuple[int, Any]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    made = work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), made


def measure(case: Case) -> dict[str, Any]:
    join_fake_world()
    torch.manual_seed(0)
    step, save = build(case)
    found: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    peaks = [peak_of(step) for _ in range(STEPS)]
    found |= {"steps": [peak for peak, _ in peaks], "backward": peaks[-1][1]}
    found["reserved"] = torch.cuda.max_memory_reserved()
    if case.saves:
        found["save"], state = peak_of(save)
        found["held"], found["save_reserved"] = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        del state
    return found


def measure_in_child(name: str, pipe: Any) -> None:
    warnings.filterwarnings("ignore")
    try:
        pipe.send(measure(CASES[name]))
    except BaseException as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"[:400], "traceback": traceback.format_exc()[-2000:]})


def measure_all(names: list[str], limit_s: float) -> None:
    context = multiprocessing.get_context("fork")
    known = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    for name in names:
        start = time.perf_counter()
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=measure_in_child, args=(name, there))
        child.start()
        there.close()
        try:
            known[name] = here.recv() if here.poll(limit_s) else {"error": f"no answer in {limit_s:.0f} s"}
        except EOFError:
            known[name] = {"error": "the process died"}
        child.kill()
        child.join()
        MEASURED.write_text(json.dumps({each: known[each] for each in CASES if each in known}, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.1f} s", known[name].get("error", known[name]), flush=True)


# -- predicting ----------------------------------------------------------------------------------------------------------------


def predict(name: str) -> dict[str, Any]:
    """In a process of its own; the step after the last saves."""
    warnings.filterwarnings("ignore")
    case, levels = CASES[name], []

    def build_in_phantom() -> Callable[[], None]:
        dist.init_process_group("nccl")
        step, save = build(case)

        def save_and_hold() -> int:
            state = save()
            return torch.cuda.memory_allocated() if state else 0

        def step_or_save() -> None:
            levels.append(step() if len(levels) < STEPS else save_and_hold())

        return step_or_save

    steps = STEPS + (case.saves is not None)
    start = time.perf_counter()
    prediction = memfit.predict(build_in_phantom, gpu="H200", world_size=WORLD, steps=steps, torch_version="2.11+cu130")
    peaks = [step.peak_allocated for step in prediction.steps]
    found = {
        "torch": torch.__version__,
        "steps": peaks[:STEPS],
        "backward": levels[STEPS - 1],
        "seconds": time.perf_counter() - start,
    }
    found["reserved"] = prediction.steps[STEPS - 1].peak_reserved
    if case.saves:
        found |= {"save": peaks[-1], "held": levels[-1], "save_reserved": prediction.peak_reserved}
    return found


def predict_in_fresh_process(name: str, limit_s: float = 300) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {limit_s:.0f} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(answers[-1]) if answers else {"error": done.stderr.strip().splitlines()[-1][:300]}


# -- the table -----------------------------------------------------------------------------------------------------------------

FIGURES = {
    "training": lambda found: max(found["steps"]),
    "after backward": lambda found: found["backward"],
    "save": lambda found: found.get("save"),
    "held": lambda found: found.get("held"),
    "reserved": lambda found: found.get("save_reserved", found["reserved"]),
}


def cells(measured: dict[str, Any], predicted: dict[str, Any]) -> list[str]:
    problem = predicted.get("error") or measured.get("error")
    if problem:
        return [problem.replace("|", "/")[:160]] + [""] * (3 * len(FIGURES) - 1)
    shown = []
    for of in FIGURES.values():
        said, true = of(predicted), of(measured) if measured else None
        off = f"{100 * (said / true - 1):+.2f} %" if said and true else ""
        shown += [f"{true / MIB:,.0f}" if true else "", f"{said / MIB:,.0f}" if said else "", off]
    return shown


def billions(args: zoo.LlamaArgs) -> str:
    with torch.device("meta"):
        return f"{sum(parameter.numel() for parameter in zoo.Llama(args).parameters()) / 1e9:.2f} billion"


def table(measured: dict[str, Any], predicted: dict[str, Any]) -> list[str]:
    where = next((f"{each['gpu']}, torch {each['torch']}" for each in measured.values() if "gpu" in each), "nothing yet")
    installed = next((each["torch"] for each in predicted.values() if "torch" in each), "none")
    titles = [title for figure in FIGURES for title in (figure, "predicted", "off")]
    return [
        f"Measured: {where}: `python benchmarks/accuracy/fsdp_measured.py --measure`. Predicted without a GPU,",
        f"torch {installed} installed: `python benchmarks/accuracy/fsdp_measured.py`.",
        f"A Llama of {billions(ARGS)} parameters on 2 x 2,048 tokens (prefetch and keep: {billions(FEW_TOKENS)} on 512), on",
        "rank 0 of 8, configured through `memfit.fsdp`, bfloat16 with float32 reduction (keep: with bfloat16). MiB.",
        "Training: the allocated peak of two steps. After backward: the level there, in the second.",
        "Save: the allocated peak while a state dict of model and optimizer is made. Held: what is allocated while it is kept.",
        "Reserved: the reserved peak of all of it.",
        "",
        "| case | " + " | ".join(titles) + " |",
        "|---" * (len(titles) + 1) + "|",
        *(f"| {name} | " + " | ".join(cells(measured.get(name, {}), said)) + " |" for name, said in predicted.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--measure", action="store_true", help="on this machine's GPU")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one measured case")
    parser.add_argument("--one", action="store_true", help="predict in this process, as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="predictions at a time")
    args = parser.parse_args()
    if args.measure:
        measure_all(args.cases, args.limit)
    elif args.one:
        print(json.dumps(predict(args.cases[0])))
    else:
        with ThreadPoolExecutor(args.jobs) as pool:
            predicted = dict(zip(args.cases, pool.map(predict_in_fresh_process, args.cases), strict=True))
        lines = table(json.loads(MEASURED.read_text()) if MEASURED.exists() else {}, predicted)
        print("\n".join(lines))
        if args.cases == list(CASES):
            (BENCHMARKS / "results" / "fsdp_measured.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
