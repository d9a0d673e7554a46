"""Plans, made blind and then run on an H200 with no more memory than their budget.

    python benchmarks/plans/plan_on_gpu.py --predict [PLAN ...]   # anywhere, without a GPU: writes results/plans/NAME.json
    python benchmarks/plans/plan_on_gpu.py --measure [PLAN ...]   # on an H200: adds to truth/plans_h200.json
    python benchmarks/plans/plan_on_gpu.py --measure --into FILE [PLAN ...]   # the same, one by one, into another file
    python benchmarks/plans/plan_on_gpu.py [--into FILE]          # anywhere: adds the rows of that file, compares, and writes
                                                                  # results/plan_on_gpu.md

Each plan runs in a process of its own, under ``torch.cuda.set_per_process_memory_fraction`` at exactly its budget. In the same
process and under the same limit run what people do without a planner: full checkpointing, every second layer, what torch's own MILP
says (``plan_torch_milp.py``), and, where the workload is compiled, the compiler's own ``activation_memory_budget``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
PLANS = BENCHMARKS / "results" / "plans"
TORCH_MILP = PLANS / "torch_milp"
TRUTH = BENCHMARKS / "truth" / "plans_h200.json"
REPORT = BENCHMARKS / "results" / "plan_on_gpu.md"
LONGEST = 90
"""Seconds that one plan and its rivals may take where they are measured one by one."""
NOISE = 0.01
"""Of a step: two medians of the same steps differ by so much."""

CASES: dict[str, tuple[str, float, bool]] = {
    "llama_005": ("llama", 0.05, False),
    "llama_040": ("llama", 0.40, False),
    "llama_090": ("llama", 0.90, False),
    "llama_long_030": ("llama_long", 0.30, False),
    "llama_long_070": ("llama_long", 0.70, False),
    "llama_long_030_offload": ("llama_long", 0.30, True),
    "llama_040_offload": ("llama", 0.40, True),
    "llama_fsdp2_020": ("llama_fsdp2", 0.20, False),
    "llama_fsdp2_070": ("llama_fsdp2", 0.70, False),
    "llama_blocks_030": ("llama_blocks", 0.30, False),
    "llama_blocks_070": ("llama_blocks", 0.70, False),
    "gpt_010": ("gpt", 0.10, False),
    "gpt_060": ("gpt", 0.60, False),
    "gpt_fsdp2_050": ("gpt_fsdp2", 0.50, False),
    "gpt_model_050": ("gpt_model", 0.50, False),
    "vit_030": ("vit", 0.30, False),
    "vit_080": ("vit", 0.80, False),
    "resnet_020": ("resnet", 0.20, False),
    "resnet_050": ("resnet", 0.50, False),
    "t5_020": ("t5", 0.20, False),
    "t5_070": ("t5", 0.70, False),
}
KINDS_CASES: dict[str, tuple[str, float, bool]] = {
    f"{name}_{round(100 * share):03d}": (name, share, False)
    for name, shares in {
        "unet": (0.4, 0.75),
        "unet_fp32": (0.6,),
        "unet_classic": (0.5,),
        "bert": (0.3, 0.7),
        "bert_large": (0.25, 0.7),
        "roberta": (0.5,),
        "gemma3": (0.2, 0.6),
        "llava": (0.3, 0.7),
        "whisper": (0.3, 0.65),
        "vit_hf": (0.35, 0.8),
        "bart": (0.5,),
        "convnext": (0.5,),
        "resnet50": (0.5,),
        "swin": (0.5,),
        "dit": (0.25, 0.7),
        "gpt_scaled": (0.3, 0.7),
        "llama_sync": (0.5,),
        "gpt_ddp": (0.5,),
        "qwen_moe": (0.5,),
        "unet_attended": (0.3, 0.8),
        "distilbert": (0.6,),
        "albert": (0.5,),
        "gemma2": (0.4,),
        "paligemma": (0.35, 0.75),
        "pegasus": (0.5,),
        "wav2vec2": (0.5,),
        "gpt2_hf": (0.25, 0.65),
    }.items()
    for share in shares
}
"""Of the kinds in ``plan_kinds.py``, with the rivals measured beside."""
FRESH_CASES: dict[str, tuple[str, float, bool]] = {
    f"{name}_{round(100 * share):03d}": (name, share, False)
    for name, share in {
        "neox": 0.35,
        "phi3": 0.3,
        "olmoe": 0.55,
        "deberta": 0.45,
        "segformer": 0.5,
        "clip": 0.35,
        "hubert": 0.6,
        "mbart": 0.4,
        "videomae": 0.5,
        "gpt_sync": 0.45,
    }.items()
}
"""Of the kinds in ``plan_fresh_kinds.py``."""
CASES |= KINDS_CASES | FRESH_CASES
"""A plan's workload, its budget between the least that fits (0) and what the workload needs as it is (1), and offloading."""


# -- made without a GPU ------------------------------------------------------------------------------------------------------------


def phantom_build(name: str, prepare: Callable[[Any], Any] = lambda model: None) -> Callable[[], Any]:
    def build() -> Any:
        import torch.distributed as dist

        from benchmarks.plans.plan_workloads import every_workload

        if every_workload()[name].world_size > 1:
            dist.init_process_group("nccl")
        return every_workload()[name].build(prepare)

    return build


def options_of(name: str) -> dict[str, Any]:
    """The fake process group, under which sharded workloads are measured, takes no time."""
    from benchmarks.plans.plan_workloads import every_workload

    world_size = every_workload()[name].world_size
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
            plan_checkpointing(phantom_build(name), budget=2**20, **options_of(name))
            raise AssertionError("a byte is enough for nobody")
        except InfeasibleError as error:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps([int(error.least_bytes), int(most)]) + "\n")
    least, most = json.loads(path.read_text())
    return least, most


def predict_one(case: str) -> None:
    from memfit.plan.checkpointing import plan_checkpointing

    name, share, offload = CASES[case]
    least, most = range_of(name)
    budget, began = int(least + share * (most - least)), time.perf_counter()
    plan = plan_checkpointing(
        phantom_build(name), budget=budget, offload=offload, time_limit=None, progress=print, **options_of(name)
    )
    plan.save(PLANS / f"{case}.json")
    print(f"{case}: {plan!r}, {time.perf_counter() - began:.0f} s", flush=True)


def predict_beside_each_other(cases: list[str], jobs: int) -> None:
    """One process for each workload; its plans share what is found out about the workload."""
    of_workload: dict[str, list[str]] = {}
    for case in cases:
        of_workload.setdefault(CASES[case][0], []).append(case)
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def in_a_process(of_one: list[str]) -> None:
        done = subprocess.run([sys.executable, __file__, "--predict", *of_one], env=env, capture_output=True, text=True)
        print(*of_one, done.stdout[-1500:], done.stderr[-800:] if done.returncode else "", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(in_a_process, of_workload.values()))


# -- run on a GPU ------------------------------------------------------------------------------------------------------------------


def measure(cases: list[str], jobs: int) -> None:
    """Compiled plans come first, and losses are compared beside them: compilers use all of the host, and little of the GPU."""
    is_compiled = {case: CASES[case][0].endswith(("_blocks", "_model")) for case in cases}
    eager = [case for case in cases if not is_compiled[case] and "fsdp2" not in case]  # the fake group gathers no parameters
    compared = {(CASES[case][0], CASES[case][2]): case for case in reversed(eager)}
    known = _known(TRUTH)
    writing = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        lock = pathlib.Path(folder, "lock")

        def in_a_process(task: tuple[str, str]) -> None:
            what, case = task
            file = pathlib.Path(folder, f"{what}_{case}.json")
            # What the deterministic products need; it changes the workspaces of the others, so that nobody else has it.
            env = os.environ | ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if what == "compare" else {})
            subprocess.run([sys.executable, __file__, "--here", what, str(file), str(lock), case], check=False, env=env)
            found = json.loads(file.read_text()) if file.exists() else {"error": "the process died"}
            with writing:
                before = known.get(case, {})
                known[case] = before | {"equality": found} if what == "compare" else found | {"equality": before.get("equality")}
                TRUTH.write_text(json.dumps(known, indent=1) + "\n")

        first = [("measure", case) for case in cases if is_compiled[case]] + [("compare", case) for case in compared.values()]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(in_a_process, first))
        with ThreadPoolExecutor(2) as pool:  # one is timed, the next gets ready
            list(pool.map(in_a_process, [("measure", case) for case in cases if not is_compiled[case]]))


def measure_one_by_one(cases: list[str], into: pathlib.Path) -> None:
    """Each in a fork of this process, which has imported all that they need: nothing else uses the host or the GPU meanwhile.
    What ``into`` has is left out."""
    os.environ |= {"PLAN_ROUNDS": "4,3", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # whoever has asked CUDA itself cannot fork
    import transformers  # noqa: F401 (the forks need it)

    from benchmarks.plans import plan_measuring  # noqa: F401

    known = _known(into)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if "error" not in known.get(case, {"error": ""}):
                continue
            file, lock = (pathlib.Path(folder, name) for name in (f"{case}.json", "lock"))
            child = multiprocessing.get_context("fork").Process(target=run_here, args=("measure", file, lock, case))
            child.start()
            child.join(LONGEST)
            if child.is_alive():
                child.kill()
                child.join()
            if file.exists() and "forked subprocess" in file.read_text():
                again = [sys.executable, __file__, "--here", "measure", str(file), str(lock), case]
                subprocess.run(again, check=False, timeout=2 * LONGEST)
            known[case] = json.loads(file.read_text()) if file.exists() else {"error": "the process died, or took too long"}
            into.write_text(json.dumps(known, indent=1) + "\n")


def _known(file: pathlib.Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    known.pop("about", None)  # it is of the measurement before
    return known


def run_here(what: str, file: pathlib.Path, lock: pathlib.Path, case: str) -> None:
    warnings.filterwarnings("ignore")
    began = time.monotonic()
    try:
        from benchmarks.plans import plan_measuring
        from memfit.plan import Plan

        plan, name = Plan.load(PLANS / f"{case}.json"), CASES[case][0]
        if what == "compare":
            found = plan_measuring.compare_one(name, plan, lock)
        else:
            found = plan_measuring.measure_one(case, name, plan, TORCH_MILP / f"{case}.json", lock)
    except Exception:
        found = {"error": traceback.format_exc()[-2000:]}
    file.write_text(json.dumps(found))
    told = {key: row.get("ms", row) if isinstance(row, dict) else row for key, row in found.items()}
    print(f"{what} {case:26s} {time.monotonic() - began:5.1f} s  {told}", flush=True)


# -- compared ----------------------------------------------------------------------------------------------------------------------

RIVALS = ("full", "every second", "every third", "torch's MILP", "compiler's budget")


def report() -> str:
    from memfit.units import format_bytes

    measured = json.loads(TRUTH.read_text())
    truth = {case: measured[case] for case in CASES if case in measured and measured[case].keys() != {"equality"}}
    lines = [
        "# Plans on an H200",
        "",
        "Made without a GPU, run under their budget (`benchmarks/plans/plan_on_gpu.py`). Milliseconds a step, the median of all",
        "rounds; *oom* where memory ran out under the same budget.",
        "",
        *textwrap.wrap(measured.get("about", ""), 132),
        "",
        "| plan | budget | predicted | measured | off | reserved | retries | full | every second | every third | torch's MILP "
        "| compiler's | unlimited |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, found in truth.items():
        if "error" in found:
            lines.append(f"| {case} | failed: {found['error'].splitlines()[-1]} |")
            continue
        ours = found["plan"]
        unlimited = shown(found["as it is"]) if "as it is" in found else ""
        reserved = format_bytes(ours["reserved"]) if "reserved" in ours else ""
        rivals = " | ".join(fastest(found, rival) or none_because(case, rival) for rival in RIVALS)
        lines.append(
            f"| {case} | {format_bytes(found['budget'])} | {found['predicted_ms']:.1f} | {shown(ours)} | {off_by(found)} "
            f"| {reserved} | {ours.get('retries', '')} | {rivals} | {unlimited} |"
        )
    return "\n".join([*lines, "", *summary(truth), "", *torch_milp(), "", *equality(measured)]) + "\n"


def summary(truth: dict[str, Any]) -> list[str]:
    found = {case: row for case, row in truth.items() if "error" not in row}
    timed = {case: row for case, row in found.items() if "ms" in row["plan"]}
    lines = [f"* {len(found) - len(timed)} of {len(found)} plans ran out of memory."]
    for told, time_of in (("By the median of all rounds", median_ms), ("By the quietest round of each", quietest_ms)):
        off = {case: row["predicted_ms"] / time_of(row["plan"]) - 1 for case, row in timed.items()}
        far = [f"{case} ({100 * off[case]:+.0f} %)" for case in timed if abs(off[case]) > 0.15]
        lines.append(f"* {told}, the predicted time of {len(timed) - len(far)} of {len(timed)} is within 15 %{listed(far)}.")
        lines += [f"  * {rival}: {against(rival, timed, time_of)}" for rival in RIVALS]
    return lines


def against(rival: str, timed: dict[str, Any], time_of: Callable[[dict[str, Any]], float]) -> str:
    """How plans did where the rival fits, too."""
    times = {
        case: min(time_of(found) for name, found in row.items() if name.startswith(rival) and "ms" in found)
        for case, row in timed.items()
        if best_ms(row, rival) is not None
    }
    if not times:
        return "it never fits."
    slower = {case: time_of(timed[case]["plan"]) / best - 1 for case, best in times.items()}
    noise = [f"{case} ({100 * slower[case]:.1f} %)" for case in times if 0 < slower[case] <= NOISE]
    lost = [f"{case} ({100 * slower[case]:.1f} %)" for case in times if slower[case] > NOISE]
    equal = f", {len(noise)} slower by less than {NOISE:.0%}{listed(noise)}" if noise else ""
    num_faster = len(times) - len(lost) - len(noise)
    return f"it fits {len(times)} times; {num_faster} plans are at least as fast{equal}, {len(lost)} slower{listed(lost)}."


def median_ms(row: dict[str, Any]) -> float:
    return row["ms"]


def quietest_ms(row: dict[str, Any]) -> float:
    """Other processes only ever make a step longer."""
    return min((statistics.median(times) for times in row.get("rounds", ())), default=row["ms"])


def listed(cases: list[str]) -> str:
    return f": {', '.join(cases)}" if cases else ""


def torch_milp() -> list[str]:
    files = {file.stem: json.loads(file.read_text()) for file in sorted(TORCH_MILP.glob("*.json"))}
    none = {case: found["none"] for case, found in files.items() if "none" in found}
    lines = [f"Torch's MILP gives a plan for {len(files) - len(none)} of {len(files)} that it was asked for; none means:"]
    return lines + [f"* {reason}: {', '.join(c for c in none if none[c] == reason)}." for reason in sorted(set(none.values()))]


def equality(truth: dict[str, Any]) -> list[str]:
    """Are losses and parameters those of the workload as it is?"""
    lines = [
        "Losses of four steps and the parameters after them, on a quarter of the batch, with the plan and as it is:",
        "",
        "| plan | two bare runs, usual kernels | plan, usual kernels | two bare runs, deterministic | plan, deterministic |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        kinds = truth.get(case, {}).get("equality")
        if not kinds:
            continue
        if "error" in kinds:
            lines.append(f"| {case} | failed: {kinds['error'].splitlines()[-1]} |")
            continue
        cells = [told_equal(kinds[kind], who) for kind in ("usual", "deterministic") for who in ("twice", "plan")]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def told_equal(kind: dict[str, bool], who: str) -> str:
    if kind[who]:
        return "equal"
    return "differ after the first loss" if kind["first loss"] else "differ"


def best_ms(found: dict[str, Any], rival: str) -> float | None:
    """The fastest that fits of those whose names begin so."""
    return min((row["ms"] for name, row in found.items() if name.startswith(rival) and "ms" in row), default=None)


def fastest(found: dict[str, Any], rival: str) -> str:
    best = best_ms(found, rival)
    if best is not None:
        return f"{best:.1f}"
    return "oom" if any(name.startswith(rival) for name in found) else ""


def none_because(case: str, rival: str) -> str:
    """Where there is no such rival: not for this workload, or torch's MILP gave none."""
    file = TORCH_MILP / f"{case}.json"
    return "none" if rival == "torch's MILP" and file.exists() and "none" in json.loads(file.read_text()) else ""


def off_by(found: dict[str, Any]) -> str:
    ours = found["plan"]
    return f"{100 * (found['predicted_ms'] / ours['ms'] - 1):+.1f} %" if "ms" in ours else ""


def shown(row: dict[str, Any]) -> str:
    return f"{row['ms']:.1f}" if "ms" in row else "oom"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--here", nargs=4, metavar=("WHAT", "FILE", "LOCK", "PLAN"), help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=0, help="processes beside each other")
    parser.add_argument(
        "--into", type=pathlib.Path, help="measures one plan after the other, half a minute each, and writes to this file"
    )
    parser.add_argument("--kinds", action="store_true", help="the plans of plan_kinds.py")
    parser.add_argument("--fresh", action="store_true", help="those of plan_fresh_kinds.py")
    parser.add_argument("plans", nargs="*", metavar="PLAN")
    given = parser.parse_args()
    kinds = (KINDS_CASES if given.kinds else {}) | (FRESH_CASES if given.fresh else {})
    cases = given.plans or list(kinds or CASES)
    if given.here is not None:
        what, file, lock, case = given.here
        run_here(what, pathlib.Path(file), pathlib.Path(lock), case)
    elif given.predict:
        PLANS.mkdir(parents=True, exist_ok=True)
        if given.jobs:
            predict_beside_each_other(cases, given.jobs)
        else:
            for case in cases:
                predict_one(case)
    elif given.measure:
        made = [case for case in cases if (PLANS / f"{case}.json").exists()]
        if given.into is None:
            measure(made, given.jobs or 6)
        else:
            measure_one_by_one(made, given.into)
    else:
        if given.into is not None:
            TRUTH.write_text(json.dumps(json.loads(TRUTH.read_text()) | _known(given.into), indent=1) + "\n")
        REPORT.write_text(report())
        print(REPORT.read_text())


if __name__ == "__main__":
    main()
