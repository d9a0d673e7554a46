"""Which modules and which operators to checkpoint, with PyTorch's names, solved by scipy's HiGHS."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Literal

import numpy as np

from memfit.compat.estimators.curves import Policy
from memfit.compat.estimators.decisions import Fate, groups_of
from memfit.compat.estimators.problem import GIB, CheckpointedModule, Load, Problem, least_peak, solve
from memfit.compat.estimators.sac_data import SACStats
from memfit.compat.estimators.units import Gathering, check_units, is_submodule
from memfit.compat.ilp_utils import Graph, Node
from memfit.errors import ConfigError, SolverTimeoutError
from memfit.units import format_bytes

__all__ = ["SACDecision", "SACSolution", "get_optimal_checkpointing_policy_per_module", "sac_milp"]

_logger = logging.getLogger(__name__)
_MODULE_TIME_LIMIT_S: Final = 10.0

Status = Literal["optimal", "time limit", "infeasible"]


class SACSolution(tuple[dict[str, float], float, int]):
    """Three values as PyTorch's ``sac_milp`` returns them, and how they came to be."""

    status: Status
    """``time limit``: the plan fits, and a faster one may exist."""
    least_bytes: int
    """The lowest peak that checkpointing can reach where the budget is below it; 0 where it is not."""

    @classmethod
    def of(cls, decisions: dict[str, float], milliseconds: float, peak: int, status: Status, least_bytes: int = 0) -> SACSolution:
        found = cls((decisions, milliseconds, peak))
        found.status, found.least_bytes = status, least_bytes
        return found


class SACDecision(IntEnum):
    RECOMPUTE = 0
    SAVE = 1


def sac_milp(
    graph: Graph,
    memory_budget: float,
    world_size: int = 1,
    ac_units: list[str] | None = None,
    fsdp_units: list[str] | None = None,
    *,
    time_limit_s: float = 180.0,
) -> SACSolution:
    """Which modules discard how much of their activations, so that a step fits and least time runs again.

    Returns ``{module: share of its sac_memory that is discarded}``, the milliseconds that run again, and the peak in bytes of just
    that plan on one rank: parameters, gradients, optimizer state, activations, temporaries and the workspaces that libraries keep,
    at the highest moment. What single kernels take while they run is not in it, nor what an allocator reserves. The peak is
    -1 where nothing fits; ``status`` and ``least_bytes`` of what is returned say more. Where no plan was found in
    ``time_limit_s``, ``SolverTimeoutError`` is raised: that is no answer.

    ``memory_budget`` is in GiB. With a ``world_size``, parameters, gradients and optimizer state are spread over the ranks, and
    units that FSDP has gathered are counted in full: ``fsdp_units``, or if none are given each module with parameters of its
    own. A module that contains units of FSDP does not discard. ``get_optimal_checkpointing_policy_per_module`` turns a share into
    operators.
    """
    names = [node["fqn"] for node in graph.nodes]
    check_units(ac_units or [], names, "ac_units")
    check_units(fsdp_units or [], names, "fsdp_units")
    if not memory_budget > 0:
        raise ConfigError(f"memory_budget is a number of GiB above 0, not {memory_budget}")
    if world_size < 1:
        raise ConfigError(f"world_size is a number of ranks, not {world_size}")
    candidates = _candidates(graph, ac_units, fsdp_units)
    problem = Problem(candidates, _loads(graph, candidates, world_size, fsdp_units))
    answer = solve(problem, int(memory_budget * GIB), time_limit_s)
    if answer is None:
        least = least_peak(problem, time_limit_s)
        _logger.error("%s", f"nothing fits into {memory_budget:g} GiB: checkpointing alone needs at least {format_bytes(least)}")
        return SACSolution.of({}, 0.0, -1, "infeasible", least)
    if not answer.is_best:
        _logger.warning("%s", f"the time of {time_limit_s:g} s ran out: the plan fits, and a faster one may exist")
    decisions = {candidates[i].name: _share(graph, candidates[i], k) for i, k in sorted(answer.chosen.items())}
    status: Status = "optimal" if answer.is_best else "time limit"
    return SACSolution.of(decisions, problem.milliseconds(answer.chosen), problem.peak(answer.chosen), status)


def _share(graph: Graph, candidate: CheckpointedModule, policy: int) -> float:
    return 1 - candidate.policies[policy].stored_bytes / graph.name2node[candidate.name]["sac_memory"]


def _candidates(graph: Graph, ac_units: Sequence[str] | None, fsdp_units: Sequence[str] | None) -> list[CheckpointedModule]:
    found = []
    for node in graph.nodes:
        name = node["fqn"]
        is_allowed = not ac_units or name in ac_units
        if node["is_leaf"] or not is_allowed or any(is_submodule(unit, name) for unit in fsdp_units or ()):
            continue
        free = [(policy, _gain(node, policy)) for policy in _policies(node)]
        free = [(policy, gain) for policy, gain in free if gain > 0]
        if free:
            found.append(CheckpointedModule(name=name, policies=tuple(p for p, _ in free), gains=tuple(gain for _, gain in free)))
    return found


def _gain(node: Node, policy: Policy) -> int:
    """What is in use less between a module's forward and its backward."""
    return node["act_fw_per_module"] - policy.stored_bytes - node.get("held_inputs", 0)


def _policies(node: Node) -> list[Policy]:
    known = node.get("policies")
    if known:
        return [Policy(stored_bytes=kept, stored_for_nothing_bytes=extra, recompute_ms=ms) for kept, extra, ms in known]
    memory, runtime = node["sac_memory"], node["sac_runtime"]
    return [
        Policy(stored_bytes=math.ceil((1 - min(x, 1.0)) * memory), stored_for_nothing_bytes=0, recompute_ms=y * runtime)
        for x, y in node["tradeoff_curve"].items()
    ]


def _loads(graph: Graph, candidates: Sequence[CheckpointedModule], world_size: int, fsdp_units: Sequence[str] | None) -> list[Load]:
    numbers = {candidate.name: i for i, candidate in enumerate(candidates)}
    parameters = {node["fqn"]: node["param_per_module"] for node in graph.nodes}
    gathering = Gathering.of(parameters, fsdp_units) if fsdp_units else Gathering.by_module(parameters)
    loads = []
    for moment in graph.moments:
        if world_size == 1:
            size = moment["total"]
        else:
            spread = moment["parameters"] + moment["gradients"] + moment["optimizer"]
            size = moment["rest"] + math.ceil(spread / world_size) + gathering.bytes_at(moment["module"], moment["phase"])
        held = tuple(numbers[name] for name in moment["held"] if name in numbers)
        if moment["again"] and moment["again"] not in numbers:
            continue  # it cannot run again
        size += graph.workspace_bytes
        loads.append(Load(size_bytes=size, held=held, again=numbers.get(moment["again"], -1), excess=moment["excess"]))
    return loads


def get_optimal_checkpointing_policy_per_module(sac_stats: SACStats, memory_budget: float) -> list[int]:
    """Per operator: is its result kept (1), or does it run again (0)? Least time within a share, 0 to 1, of the module's memory.

    An empty list where what must be kept is more than that.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not 0 <= memory_budget <= 1:
        raise ValueError(f"`memory_budget` must be a float between 0 and 1. Got {memory_budget}.")
    groups = groups_of(sac_stats)
    allowed = math.ceil(memory_budget * sum(sac_stats.memory))
    must = sum(group.memory for group in groups if group.fate is Fate.STORED)
    if must > allowed:
        _logger.error("%s", f"{format_bytes(must)} must be kept, and {format_bytes(allowed)} may be: nothing can be decided")
        return []
    if not groups:
        return []
    memory = np.array([group.memory for group in groups], dtype=float)
    done = milp(
        [-group.runtime for group in groups],
        integrality=np.ones(len(groups)),
        bounds=Bounds(
            [float(group.fate is Fate.STORED) for group in groups], [float(group.fate is not Fate.RECOMPUTED) for group in groups]
        ),
        constraints=LinearConstraint(memory[None, :] / max(allowed, 1), -np.inf, allowed / max(allowed, 1)),
        options={"time_limit": _MODULE_TIME_LIMIT_S, "mip_rel_gap": 1e-4},
    )
    if done.x is None:
        raise SolverTimeoutError(_MODULE_TIME_LIMIT_S, str(done.message))
    decisions = [int(SACDecision.RECOMPUTE)] * len(sac_stats.func_names)
    for group, kept in zip(groups, np.round(done.x).tolist(), strict=True):
        for operator in group.operators:
            decisions[operator] = int(kept)
    return decisions
