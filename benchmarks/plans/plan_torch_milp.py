"""What torch's own MILP (``torch.distributed._tools.sac_ilp``) would checkpoint within the budgets of ``plan_on_gpu.py``.

    python benchmarks/plans/plan_torch_milp.py [PLAN ...]  # anywhere, with pulp: writes results/plans/torch_milp/NAME.json

Torch's solver decides, on torch's graph. What it is told of the model comes from ``memfit.compat``'s estimators, which have the
same surface: torch's own abort where there is no GPU. Optimizer state is known, but the solver does not ask for it. Torch has
nothing that applies its plans; ``plan_measuring.py`` does so with torch's selective checkpointing. A file has, for each unit, which
calls of which operators are kept, by their names.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import torch
from torch import nn

import memfit
from memfit.compat import MemTracker, RuntimeEstimator, SACEstimator
from memfit.compat.ilp_utils import aggregate_stats
from memfit.plan import Plan

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.plans.plan_on_gpu import CASES, PLANS, TORCH_MILP, options_of, range_of
from benchmarks.plans.plan_workloads import WORKLOADS, Workload

MODE = "operator-level-cost-model"


def estimated(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What torch's solver wants to know: of modules, and of the operators in them."""
    workload: Workload = WORKLOADS[name]
    found: list[Any] = []

    def build() -> Any:
        if workload.world_size > 1:
            torch.distributed.init_process_group("nccl")
        models: list[nn.Module] = []
        step = workload.build(models.append)
        tracker = MemTracker()
        tracker.track_external(models[0])
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        runtime, sac = RuntimeEstimator(gpu="H200"), SACEstimator(gpu="H200")
        with runtime(MODE):
            step()
        autocast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=workload.autocast is not None)
        with sac(MODE), autocast:
            workload.loss(models[0], workload.batch())
        found.append(aggregate_stats(models[0], tracker, runtime, sac, torch.device("cuda:0")))
        found.append(dict(sac.sac_mod_stats))
        return step

    memfit.predict(build, steps=1, **options_of(name))
    return found[0], found[1]


def solve(case: str, info: dict[str, Any], operators: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed._tools.ilp_utils import parse_module_info
    from torch.distributed._tools.sac_ilp import get_optimal_checkpointing_policy_per_module, sac_milp

    name, share, _ = CASES[case]
    least, most = range_of(name)
    try:
        graph = parse_module_info(info)
    except AssertionError:  # without a word, as for a dropout that a block uses twice
        return {"none": "torch's graph takes no module that runs twice"}
    root, policy = graph.nodes[0]["fqn"], Plan.load(PLANS / f"{case}.json").checkpointing
    units = [f"{root}.{unit}" for unit in (*policy.units, *policy.untouched)]
    world_size = WORKLOADS[name].world_size
    sharded = {"world_size": world_size, "fsdp_units": units} if world_size > 1 else {}
    decisions, _, peak = sac_milp(graph, (least + share * (most - least)) / 2**30, ac_units=units, **sharded)
    if peak == -1:
        return {"none": "torch's solver finds no plan"}
    found: dict[str, Any] = {}
    for unit, discarded in decisions.items():
        stats = operators[unit]
        try:
            kept = get_optimal_checkpointing_policy_per_module(stats, 1 - discarded)
        except TypeError:  # where nothing may be kept, torch's solver leaves variables without values
            kept = []
        calls: dict[str, list[int]] = {}
        for place, operator in enumerate(stats.func_names):
            if kept and kept[place]:
                calls.setdefault(operator, []).append(stats.func_names[:place].count(operator))
        found[unit.removeprefix(f"{root}.")] = calls
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", metavar="PLAN")
    known = [case for case in CASES if CASES[case][0] in WORKLOADS]
    cases = parser.parse_args().plans or [case for case in known if WORKLOADS[CASES[case][0]].way == "eager"]
    TORCH_MILP.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {}
    for case in cases:
        name = CASES[case][0]
        if name not in known:
            known[name] = estimated(name)
        found = solve(case, *known[name])
        (TORCH_MILP / f"{case}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(case, len(found), next(iter(found.items()), ""), flush=True)


if __name__ == "__main__":
    main()
