"""Plans, made blind and then run on an H200 with no more memory than their budget.

    python benchmarks/plan_on_gpu.py --predict [PLAN ...]   # anywhere, without a GPU: writes results/plans/NAME.json
    python benchmarks/plan_on_gpu.py --measure [PLAN ...]   # on an H200: writes truth/plans_h200.json
    python benchmarks/plan_on_gpu.py                        # anywhere: compares, and writes results/plan_on_gpu.md

Each plan runs in a process of its own, under ``torch.cuda.set_per_process_memory_fraction`` at exactly its budget. In the same
process and under the same limit run what people do without a planner: full checkpointing, every second layer, and, where the
workload is compiled, the compiler's own ``activation_memory_budget``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HERE = pathlib.Path(__file__).parent
PLANS = HERE / "results" / "plans"
TRUTH = HERE / "truth" / "plans_h200.json"
REPORT = HERE / "results" / "plan_on_gpu.md"
WARM_UP, TIMED = 3, 4
BUDGETS = (0.3, 0.5, 0.7)
"""What the compiler's own budget is tried at."""

CASES: dict[str, tuple[str, float, bool]] = {
    "llama_005": ("llama", 0.05, False),
    "llama_040": ("llama", 0.40, False),
    "llama_090": ("llama", 0.90, False),
    "llama_long_030": ("llama_long", 0.30, False),
    "llama_long_030_offload": ("llama_long", 0.30, True),
    "llama_040_offload": ("llama", 0.40, True),
    "llama_fsdp2_020": ("llama_fsdp2", 0.20, False),
    "llama_fsdp2_070": ("llama_fsdp2", 0.70, False),
    "llama_blocks_030": ("llama_blocks", 0.30, False),
    "llama_blocks_070": ("llama_blocks", 0.70, False),
    "gpt_010": ("gpt", 0.10, False),
    "gpt_060": ("gpt", 0.60, False),
    "gpt_fsdp2_050": ("gpt_fsdp2", 0.50, False),
    "vit_030": ("vit", 0.30, False),
    "vit_080": ("vit", 0.80, False),
    "vit_model_050": ("vit_model", 0.50, False),
    "resnet_050": ("resnet", 0.50, False),
    "t5_020": ("t5", 0.20, False),
    "t5_070": ("t5", 0.70, False),
}
"""A plan's workload, its budget between the least that fits (0) and what the workload needs as it is (1), and offloading."""


# -- made without a GPU ------------------------------------------------------------------------------------------------------------


def phantom_build(name: str, prepare: Callable[[Any], Any] = lambda model: None) -> Callable[[], Any]:
    def build() -> Any:
        import torch.distributed as dist
        from plan_workloads import WORKLOADS

        if WORKLOADS[name].world_size > 1:
            dist.init_process_group("nccl")
        return WORKLOADS[name].build(prepare)

    return build


def options_of(name: str) -> dict[str, Any]:
    """The fake process group, under which sharded workloads are measured, takes no time."""
    from plan_workloads import WORKLOADS

    world_size = WORKLOADS[name].world_size
    return {"gpu": "H200", "world_size": world_size, "interconnect": "fake" if world_size > 1 else ""}


def range_of(name: str) -> tuple[int, int]:
    """The least budget that fits, and what the workload needs as it is; found once for each workload."""
    import memfit
    from memfit.errors import InfeasibleError
    from memfit.plan.checkpointing import plan_checkpointing

    path = PLANS / "ranges" / f"{name}.json"
    if not path.exists():
        most = memfit.predict(phantom_build(name), **options_of(name)).smallest_fit
        try:
            plan_checkpointing(phantom_build(name), budget=1, **options_of(name))
            raise AssertionError("a byte is enough for nobody")
        except InfeasibleError as error:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps([int(error.least_bytes), int(most)]) + "\n")
    least, most = json.loads(path.read_text())
    return least, most


def predict_one(case: str, max_trials: int) -> None:
    from memfit.plan.checkpointing import plan_checkpointing

    name, share, offload = CASES[case]
    least, most = range_of(name)
    budget, began = int(least + share * (most - least)), time.perf_counter()
    plan = plan_checkpointing(
        phantom_build(name), budget=budget, offload=offload, max_trials=max_trials, progress=print, **options_of(name)
    )
    plan.save(PLANS / f"{case}.json")
    print(f"{case}: {plan!r}, {time.perf_counter() - began:.0f} s", flush=True)


# -- run on a GPU ------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(lock: pathlib.Path) -> Iterator[None]:
    """One process at a time has the GPU."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def rivals(plan: Any, way: str) -> dict[str, Any]:
    """What people do without a planner: a policy, or a budget of the compiler's."""
    from memfit.plan import CheckpointingPolicy, UnitPolicy

    policy = plan.checkpointing
    units = sorted((*policy.units, *policy.untouched), key=lambda unit: [int(p) if p.isdigit() else p for p in unit.split(".")])
    full = CheckpointingPolicy(groups=(UnitPolicy(units=tuple(units)),))
    half = CheckpointingPolicy(groups=(UnitPolicy(units=tuple(units[::2])),), untouched=tuple(units[1::2]))
    found: dict[str, Any] = {"full": full, "every second": half}
    if way != "eager":
        found |= {f"compiler's budget {share}": share for share in BUDGETS}
    return found


def time_steps(build: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """The median step, the losses and the peak; ``oom`` where memory ran out."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    times, losses, began = [], [], 0.0
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    try:
        step = build()
        torch.cuda.synchronize()
        for number in range(WARM_UP + TIMED):
            start = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            if number == WARM_UP:  # what a process does once, as loading kernels, is over
                began = start
            if number >= WARM_UP:
                times.append(time.perf_counter() - start)
            losses.append(loss.item())
            if seconds == 0:  # only what is compiled was wanted
                return {}
            if times and time.perf_counter() - began > seconds:
                break
        found = {"ms": round(1000 * statistics.median(times), 3), "losses": losses}
    except torch.OutOfMemoryError:
        found = {"oom": True}
    found |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    found["retries"] = torch.cuda.memory_stats()["num_alloc_retries"] - retries
    return found


def measure_one(case: str, lock: pathlib.Path, is_warming: bool) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from plan_workloads import WORKLOADS
    from torch._functorch import config as functorch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import memfit
    from memfit.plan import Plan

    plan, workload = Plan.load(PLANS / f"{case}.json"), WORKLOADS[CASES[case][0]]
    if workload.world_size > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=workload.world_size)
    patience = 0.0 if is_warming else 4.0
    with contextlib.nullcontext() if is_warming else alone(lock):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(plan.budget_bytes / total)
        found = {"plan": time_steps(lambda: workload.build(lambda model: memfit.apply(model, plan)), patience)}
        for name, rival in rivals(plan, workload.way).items():
            if isinstance(rival, float):
                torch.compiler.reset()
                with functorch.patch(activation_memory_budget=rival):
                    found[name] = time_steps(workload.build, patience)
            else:
                found[name] = time_steps(lambda rival=rival: workload.build(lambda model: memfit.apply(model, rival)), patience)
        torch.cuda.set_per_process_memory_fraction(1.0)
        found["as it is"] = time_steps(workload.build, patience)
    return found


def measure(cases: list[str], jobs: int, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)

    def in_a_process(case: str, *flags: str) -> None:
        subprocess.run([sys.executable, __file__, "--here", str(folder), *flags, case], check=False)

    with ThreadPoolExecutor(jobs) as pool:
        # Compiled once into the compiler's cache on disk, side by side, before anything is timed.
        list(pool.map(lambda case: in_a_process(case, "--warm"), [case for case in cases if "blocks" in case or "model" in case]))
        list(pool.map(in_a_process, cases))
    known = json.loads(TRUTH.read_text()) if TRUTH.exists() else {}
    known |= {case: json.loads(file.read_text()) for case in cases if (file := folder / f"{case}.json").exists()}
    TRUTH.write_text(json.dumps(known, indent=1) + "\n")


def measure_here(case: str, folder: pathlib.Path, is_warming: bool) -> None:
    warnings.filterwarnings("ignore")
    began = time.monotonic()
    try:
        found = measure_one(case, folder / "lock", is_warming)
    except Exception:
        found = {"error": traceback.format_exc()[-2000:]}
    (folder / f"{case}.json").write_text(json.dumps(found))
    shown_times = {name: row.get("ms", "oom") if isinstance(row, dict) else row for name, row in found.items()}
    print(f"{case:28s} {time.monotonic() - began:5.1f} s  {shown_times}", flush=True)


# -- compared ----------------------------------------------------------------------------------------------------------------------


def report() -> str:
    from memfit.plan import Plan
    from memfit.units import format_bytes

    truth = json.loads(TRUTH.read_text())
    lines = [
        "# Plans on an H200",
        "",
        "Made without a GPU, run under their budget. Milliseconds a step; *oom* where memory ran out under the same budget.",
        "",
        "| plan | budget | predicted | measured | off | reserved | full | every second | compiler's best | unlimited | losses |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, found in truth.items():
        plan = Plan.load(PLANS / f"{case}.json")
        if "error" in found:
            lines.append(f"| {case} | {format_bytes(plan.budget_bytes)} | failed: {found['error'].splitlines()[-1]} |")
            continue
        ours, predicted = found["plan"], 1e3 * (plan.step_seconds or 0.0)
        compiled = [row.get("ms", float("inf")) for name, row in found.items() if name.startswith("compiler's")]
        best = f"{min(compiled):.1f}" if compiled and min(compiled) < float("inf") else "oom" if compiled else ""
        off = f"{100 * (predicted / ours['ms'] - 1):+.1f} %" if "ms" in ours else ""
        equal = compared(ours.get("losses", []), found["as it is"]["losses"], found["full"].get("losses", []))
        lines.append(
            f"| {case} | {format_bytes(plan.budget_bytes)} | {predicted:.1f} | {shown(ours)} | {off} "
            f"| {format_bytes(ours['reserved'])} | {shown(found['full'])} | {shown(found['every second'])} | {best} "
            f"| {shown(found['as it is'])} | {equal} |"
        )
    return "\n".join(lines) + "\n"


def compared(ours: list[float], plain: list[float], full: list[float]) -> str:
    """Are losses those of the workload as it is? Where kernels add up in any order, no two runs are equal after the first step."""
    if ours and ours == plain[: len(ours)]:  # runs end when their time is over
        return "equal"
    if ours[:1] == plain[:1] and full != plain:
        return "equal at first, then as those of two runs of anything"
    return "differ"


def shown(row: dict[str, Any]) -> str:
    return f"{row['ms']:.1f}" if "ms" in row else "oom"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--here", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, default=10, help="predictions after the first two, for each plan")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir(), "plan_on_gpu"))
    parser.add_argument("plans", nargs="*", metavar="PLAN")
    given = parser.parse_args()
    cases = given.plans or list(CASES)
    if given.here is not None:
        measure_here(cases[0], given.here, given.warm)
    elif given.predict:
        PLANS.mkdir(parents=True, exist_ok=True)
        for case in cases:
            predict_one(case, given.trials)
    elif given.measure:
        measure([case for case in cases if (PLANS / f"{case}.json").exists()], given.jobs, given.folder)
    else:
        REPORT.write_text(report())
        print(REPORT.read_text())


if __name__ == "__main__":
    main()
