"""The half of ``plan_on_gpu.py`` that needs a GPU: one plan and its rivals in one process, under the plan's budget.

::

    eager      each way on a model of its own, as a user would; then, in more rounds, two ways take turns on one model: each is put
               on it, warms up, is timed and is taken off again
    compiled   a model for each way, because a compiler remembers what it has seen

Whoever takes times has the GPU alone. What runs out of memory on a model that others have used is tried once more on a new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._functorch import config as functorch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memfit
from benchmarks.plans.plan_workloads import Workload, every_workload
from benchmarks.recording.gpu_tracking import Turns
from memfit.plan import CheckpointingPolicy, Plan, UnitPolicy
from memfit.plan.applying import undo
from memfit.plan.applying.named_units import named_units, unwrapped

ROUNDS, TIMED_A_ROUND = (int(number) for number in os.environ.get("PLAN_ROUNDS", "3,3").split(","))
WARM_UP = 2
"""Steps of a round before those that are timed: it begins with an empty cache."""
COMPILER_BUDGETS = (0.05, 0.3, 0.6)
"""What the compiler's own budget is tried at; 1 is to keep all that it likes to keep."""
EQUAL_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Way:
    """How a model is trained: what is done to it before, and how that is taken back."""

    name: str
    put_on: Callable[[nn.Module], Any] = lambda model: None
    take_off: Callable[[nn.Module], Any] = lambda model: None
    compiler_budget: float = 1.0
    is_limited: bool = True


def ways_of(plan: Plan, workload: Workload, torch_milp: pathlib.Path) -> list[Way]:
    """The plan, and what people do without it."""
    policy = plan.checkpointing
    units = sorted((*policy.units, *policy.untouched), key=lambda unit: [int(p) if p.isdigit() else p for p in unit.split(".")])
    is_eager = workload.way == "eager"
    rival = plainly if is_eager else by_policy
    found = [by_policy("plan", policy), rival("full", units), rival("every second", units[::2]), rival("every third", units[::3])]
    if torch_milp.exists():
        decided = json.loads(torch_milp.read_text())
        if "none" not in decided:
            found.append(selectively("torch's MILP", decided))
    if not is_eager:
        return found + [Way(f"compiler's budget {budget}", compiler_budget=budget) for budget in COMPILER_BUDGETS]
    return [*found, Way("as it is", is_limited=False)]


def by_policy(name: str, policy: CheckpointingPolicy | list[str]) -> Way:
    if isinstance(policy, list):
        policy = CheckpointingPolicy(groups=(UnitPolicy(units=tuple(policy)),))
    return Way(name, lambda model: memfit.apply(model, policy), undo)


def plainly(name: str, units: list[str]) -> Way:
    """As people write it, with nothing of memfit. They switch off caches of keys and values, which torch's would fill twice."""

    def put_on(model: nn.Module) -> None:
        known = named_units(unwrapped(model))
        for unit in units:
            known[unit].forward = functools.partial(checkpoint, known[unit].forward, use_reentrant=False)
        use_caches(model, False)

    def take_off(model: nn.Module) -> None:
        known = named_units(unwrapped(model))
        for unit in units:
            del known[unit].forward
        use_caches(model, True)

    return Way(name, put_on, take_off)


def use_caches(model: nn.Module, is_on: bool) -> None:
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = is_on


def selectively(name: str, decided: dict[str, dict[str, list[int]]]) -> Way:
    """Units that keep some calls of some operators, with torch's own selective checkpointing."""

    def contexts(kept: dict[str, list[int]]) -> Any:
        counts: dict[tuple[str, bool], int] = {}

        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            key = (operator.overloadpacket.__name__, context.is_recompute)
            counts[key] = counts.get(key, -1) + 1
            return CheckpointPolicy.MUST_SAVE if counts[key] in kept.get(key[0], ()) else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy, allow_cache_entry_mutation=True)

    def put_on(model: nn.Module) -> None:
        known = named_units(unwrapped(model))
        for unit, kept in decided.items():
            again = functools.partial(contexts, kept)
            known[unit].forward = functools.partial(checkpoint, known[unit].forward, use_reentrant=False, context_fn=again)

    def take_off(model: nn.Module) -> None:
        known = named_units(unwrapped(model))
        for unit in decided:
            del known[unit].forward

    return Way(name, put_on, take_off)


class Training:
    """A model that is trained in one way, then in another."""

    def __init__(self, workload: Workload, budget_bytes: int) -> None:
        self._workload, self._budget_bytes = workload, budget_bytes
        self._model: nn.Module | None = None
        self._way = Way("")
        self._step: Callable[[], Any] | None = None

    def renew(self, way: Way) -> None:
        """A new model, and memory as at the start of a process."""
        self.forget()
        self._limit(way)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        torch.manual_seed(0)
        models: list[nn.Module] = []
        self._step = self._workload.build(lambda model: (models.append(model), way.put_on(model)))
        self._model, self._way = models[0], way
        self.steps(2)

    def switch(self, way: Way) -> None:
        if self._model is None:
            self.renew(way)
            return
        self._way.take_off(self._model)
        gc.collect()
        torch.cuda.empty_cache()
        self._limit(way)
        way.put_on(self._model)
        self._way = way

    def forget(self) -> None:
        self._model = self._step = None
        gc.collect()
        torch.cuda.empty_cache()

    def steps(self, count: int) -> list[float]:
        """Milliseconds of each."""
        taken = []
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self._step()
            torch.cuda.synchronize()
            taken.append(round(1e3 * (time.perf_counter() - start), 3))
        return taken

    def _limit(self, way: Way) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(self._budget_bytes / total if way.is_limited else 1.0)


def memory() -> dict[str, int]:
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
    }


def measure_eager(training: Training, ways: list[Way], turns: Turns) -> dict[str, Any]:
    """What fits anyhow comes first. Where a rival runs out, cuDNN falls back to slow kernels, and remembers them."""
    found: dict[str, Any] = {way.name: {"rounds": []} for way in ways}
    plan, full, *risky = (way for way in ways if way.is_limited)
    with turns.taken(alone=True):
        in_rounds(training, [plan, full], found)
        in_rounds(training, [way for way in ways if not way.is_limited], found, num_rounds=1)
        for rival in risky:
            in_rounds(training, [rival, plan], found)
        training.forget()
    return found


def in_rounds(training: Training, ways: list[Way], found: dict[str, Any], num_rounds: int = ROUNDS) -> None:
    """Ways take turns; where the first runs out at once, the others have no more rounds."""
    for number in range(num_rounds):
        for way in ways:
            row = found[way.name]
            if "oom" in found[ways[0].name]:
                return
            is_first = not row["rounds"]
            times = in_one_round(training, way, is_new=number == 0)
            row |= {"rounds": [*row["rounds"], times]} if times else {"oom": True}
            if is_first:
                row |= memory()


def in_one_round(training: Training, way: Way, is_new: bool) -> list[float]:
    """Milliseconds of some steps; none where memory runs out on a new model."""
    for is_renewed in (is_new, True):
        try:
            if is_renewed:
                training.renew(way)
            else:
                training.switch(way)
            training.steps(WARM_UP)
            return training.steps(TIMED_A_ROUND)
        except torch.OutOfMemoryError:
            pass  # the model is thrown away when nothing of the error holds it any more
        except Exception as error:  # a rival that does not work is told as such, and the plan has its rounds
            if way.name == "plan":
                raise
            print(f"{way.name}: {type(error).__name__}: {error}"[:300], flush=True)
        training.forget()
        if is_renewed:
            break
    return []


def measure_compiled(training: Training, ways: list[Way], turns: Turns) -> dict[str, Any]:
    found: dict[str, Any] = {way.name: {"rounds": []} for way in ways}
    for way in ways:
        row = found[way.name]
        with functorch.patch(activation_memory_budget=way.compiler_budget), contextlib.suppress(torch.OutOfMemoryError):
            row["oom"] = True
            training.forget()
            torch.compiler.reset()
            training.renew(way)  # compilers need the host for most of the time: others may use the GPU meanwhile
            with turns.taken(alone=True):
                training.steps(1)
                row["rounds"].append(training.steps(ROUNDS * TIMED_A_ROUND))
            del row["oom"]
        row |= memory()
    training.forget()
    return found


def measure_one(case: str, name: str, plan: Plan, torch_milp: pathlib.Path, lock: pathlib.Path) -> dict[str, Any]:
    workload = every_workload()[name]
    join_world(workload)
    torch.cuda.init()
    measure = measure_eager if workload.way == "eager" else measure_compiled
    found = measure(Training(workload, plan.budget_bytes), ways_of(plan, workload, torch_milp), Turns(lock))
    for row in found.values():
        times = [milliseconds for times in row["rounds"] for milliseconds in times]
        if times and "oom" not in row:
            row["ms"] = statistics.median(times)
    return found | {"predicted_ms": 1e3 * (plan.step_seconds or 0.0), "budget": plan.budget_bytes}


# -- is it the same? ---------------------------------------------------------------------------------------------------------------


def compare_one(name: str, plan: Plan, lock: pathlib.Path) -> dict[str, Any]:
    """Losses and parameters of some steps, with the plan and without, on a part of the batch."""
    workload = every_workload()[name]
    join_world(workload)
    whole = workload.batch
    small = dataclasses.replace(workload, batch=lambda: tuple(part[: max(1, len(part) // 4)] for part in whole()))
    bare, planned = Way("bare"), by_policy("plan", plan.checkpointing)
    with Turns(lock).taken(alone=False):
        usual = [trained(small, way) for way in (bare, bare, planned)]
        torch.use_deterministic_algorithms(True)
        fixed = [trained(small, way) for way in (bare, bare, planned)]
    return {
        "usual": {"twice": usual[0] == usual[1], "plan": usual[0] == usual[2], "first loss": usual[0][0] == usual[2][0]},
        "deterministic": {"twice": fixed[0] == fixed[1], "plan": fixed[0] == fixed[2], "first loss": fixed[0][0] == fixed[2][0]},
    }


def trained(workload: Workload, way: Way) -> list[float]:
    torch.manual_seed(0)
    models: list[nn.Module] = []
    step = workload.build(lambda model: (models.append(model), way.put_on(model)))
    losses = [step().item() for _ in range(EQUAL_STEPS)]
    with torch.no_grad():
        parameters = [local(parameter).double().sum().item() for parameter in models[0].parameters()]
    del step
    models.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return [*losses, *parameters]


def local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def join_world(workload: Workload) -> None:
    if workload.world_size > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=workload.world_size)
