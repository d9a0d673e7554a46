"""Which modules discard how much, as a linear programme with binary choices, for scipy's HiGHS.

::

    minimise     time that runs again
    such that    at every moment: in use without checkpointing - what waiting modules discarded + what runs again needs <= budget
                 of a module and those inside it, at most one discards

A module mixes policies of its greedy order in the programme; in the answer it has one of them, the next that discards at least as
much. So what is answered can be done, and its peak and its time are those of what is answered, not those of the programme.

Prices are known to some percent. Where it costs less than that, the module around takes the place of those inside it: whole blocks
are what people checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.compat.estimators.curves import Policy
from memfit.compat.estimators.units import is_self_or_submodule, is_submodule
from memfit.errors import SolverTimeoutError
from memfit.ledger.schema import Array

GIB: Final = 2**30
GAP: Final = 0.01
"""How far from the best the solver may stop."""
SAME: Final = 0.05
"""Plans whose times differ by less are equally fast: the clock does not tell them apart."""


@dataclass(frozen=True, kw_only=True)
class CheckpointedModule:
    """A module that could discard something."""

    name: str
    policies: tuple[Policy, ...]
    """Those that free something, from most to least kept."""
    gains: tuple[int, ...]
    """What each frees while the module waits for its backward."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One moment, on one rank."""

    size_bytes: int
    """Without checkpointing."""
    held: tuple[int, ...]
    """The candidates that wait for their backward."""
    again: int = -1
    """The candidate that would run again first, -1 for none."""
    excess: int = 0


class Problem:
    """The candidates, and the moments that no other covers."""

    def __init__(self, candidates: Sequence[CheckpointedModule], loads: Sequence[Load]) -> None:
        self.candidates = candidates
        self.loads = _not_covered(loads)
        self._sizes = np.array([load.size_bytes for load in self.loads], dtype=np.int64)
        self._again = np.array([load.again for load in self.loads], dtype=np.int64)
        self._excess = np.array([load.excess for load in self.loads], dtype=np.int64)
        self._waits = np.zeros((len(self.loads), len(candidates)), dtype=np.int64)
        for row, load in enumerate(self.loads):
            self._waits[row, list(load.held)] = 1

    def peak(self, chosen: Mapping[int, int]) -> int:
        """The highest moment, where some candidates each have one of their policies."""
        freed = np.zeros(len(self.candidates), dtype=np.int64)
        runs_again = np.zeros(len(self.candidates) + 1, dtype=np.int64)
        dropped = runs_again.copy()
        for i, k in chosen.items():
            freed[i] = self.candidates[i].gains[k]
            runs_again[i], dropped[i] = 1, self.candidates[i].policies[k].stored_for_nothing_bytes
        sizes = self._sizes - self._waits @ freed + runs_again[self._again] * (self._excess + dropped[self._again])
        return int(sizes.max(initial=0))

    def milliseconds(self, chosen: Mapping[int, int]) -> float:
        return sum(self.candidates[i].policies[k].recompute_ms for i, k in chosen.items())


@dataclass(frozen=True, kw_only=True)
class SacSolution:
    chosen: dict[int, int]
    """By candidate: the number of its policy."""
    is_best: bool
    """Proved to be one of the best. If not, the time ran out."""


def solve(problem: Problem, budget_bytes: int, time_limit_s: float) -> SacSolution | None:
    """The least time within a budget; ``None`` where nothing fits."""
    if problem.peak({}) <= budget_bytes:
        return SacSolution(chosen={}, is_best=True)
    programme, aim = _Programme(problem), budget_bytes
    for _ in range(_ATTEMPTS):
        found = programme.least_time(aim, time_limit_s)
        if found is None:
            return None
        chosen = _give_back(problem, found.chosen, budget_bytes)
        over = problem.peak(chosen) - budget_bytes
        if over <= 0:
            return SacSolution(chosen=_further_out(problem, chosen, budget_bytes), is_best=found.is_best)
        aim -= over  # the solver's numbers are floats: it may be some bytes above
    return None


def least_peak(problem: Problem, time_limit_s: float) -> int:
    """The lowest peak that any choice has."""
    return problem.peak(_Programme(problem).least_memory(time_limit_s).chosen)


_ATTEMPTS: Final = 4


def _give_back(problem: Problem, chosen: dict[int, int], budget_bytes: int) -> dict[int, int]:
    """Takes back what rounding discarded too much: policies one after the other, those first that save most time."""
    chosen = dict(chosen)
    while True:
        best, saved = None, 0.0
        for i, k in chosen.items():
            fewer = {**chosen, i: k - 1} if k else {other: chosen[other] for other in chosen if other != i}
            saves = problem.milliseconds(chosen) - problem.milliseconds(fewer)
            if saves > saved and problem.peak(fewer) <= budget_bytes:
                best, saved = fewer, saves
        if best is None:
            return chosen
        chosen = best


def _further_out(problem: Problem, chosen: dict[int, int], budget_bytes: int) -> dict[int, int]:
    """Puts modules in the place of those inside them, one after the other, while the time stays the same for all that is known."""
    limit_ms = (1 + SAME) * problem.milliseconds(chosen)
    names = [candidate.name for candidate in problem.candidates]
    for around in sorted(range(len(names)), key=lambda i: -names[i].count(".")):
        inside = [i for i in chosen if is_submodule(names[i], names[around])]
        others = {i: k for i, k in chosen.items() if i not in inside}
        for policy in range(len(problem.candidates[around].policies)) if inside else ():
            instead = {**others, around: policy}
            if problem.milliseconds(instead) > limit_ms:
                break  # further policies take longer
            if problem.peak(instead) <= budget_bytes:
                chosen = instead
                break
    return chosen


class _Programme:
    """Per candidate: is it chosen, what does it free, and how much of each policy is in the mixture."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._columns: list[tuple[int, int]] = []
        """Candidate and policy of each share."""
        for i, candidate in enumerate(problem.candidates):
            self._columns += [(i, k) for k in _corners(candidate)]
        self._num = len(problem.candidates)
        self._width = 2 * self._num + len(self._columns) + 1
        self._peak = self._width - 1

    def least_time(self, budget_bytes: int, time_limit_s: float) -> SacSolution | None:
        cost = np.zeros(self._width)
        for column, (i, k) in enumerate(self._columns):
            cost[2 * self._num + column] = self._problem.candidates[i].policies[k].recompute_ms
        return self._run(cost, budget_bytes / GIB, time_limit_s)

    def least_memory(self, time_limit_s: float) -> SacSolution:
        cost = np.zeros(self._width)
        cost[self._peak] = 1.0
        found = self._run(cost, np.inf, time_limit_s)
        return found or SacSolution(chosen={}, is_best=True)

    def _run(self, cost: Array, budget: float, time_limit_s: float) -> SacSolution | None:
        from scipy.optimize import Bounds, LinearConstraint, milp

        matrix, low, high = self._constraints()
        upper = np.ones(self._width)
        upper[self._num : 2 * self._num] = np.inf
        upper[self._peak] = budget
        integer = np.zeros(self._width)
        integer[: self._num] = 1
        done = milp(
            cost,
            integrality=integer,
            bounds=Bounds(np.zeros(self._width), upper),
            constraints=LinearConstraint(matrix, low, high),
            options={"time_limit": time_limit_s, "mip_rel_gap": GAP},
        )
        if done.x is None:
            if done.status == _INFEASIBLE:
                return None
            raise SolverTimeoutError(time_limit_s, str(done.message))
        return SacSolution(chosen=self._rounded(done.x), is_best=done.status == _OPTIMAL)

    def _constraints(self) -> tuple[Any, Array, Array]:
        """Rows of a sparse matrix with their bounds."""
        from scipy.sparse import csr_array

        rows: list[dict[int, float]] = []
        bounds: list[tuple[float, float]] = []
        shares: list[list[int]] = [[] for _ in range(self._num)]
        for column, (i, _) in enumerate(self._columns):
            shares[i].append(2 * self._num + column)
        for i in range(self._num):
            rows.append({i: -1.0, **dict.fromkeys(shares[i], 1.0)})
            rows.append({self._num + i: -1.0, **{column: self._gain(column) for column in shares[i]}})
            bounds += [(0.0, 0.0)] * 2
        for path in _paths([candidate.name for candidate in self._problem.candidates]):
            rows.append(dict.fromkeys(path, 1.0))
            bounds.append((-np.inf, 1.0))
        for load in self._problem.loads:
            row = {self._peak: -1.0, **{self._num + i: -1.0 for i in load.held}}
            if load.again >= 0:
                row |= {column: self._needed(load, column) for column in shares[load.again]}
            rows.append(row)
            bounds.append((-np.inf, -load.size_bytes / GIB))
        row_numbers = [number for number, row in enumerate(rows) for _ in row]
        columns, values = [column for row in rows for column in row], [value for row in rows for value in row.values()]
        low, high = np.array(bounds).T
        return csr_array((values, (row_numbers, columns)), shape=(len(rows), self._width)), low, high

    def _gain(self, column: int) -> float:
        i, k = self._columns[column - 2 * self._num]
        return self._problem.candidates[i].gains[k] / GIB

    def _needed(self, load: Load, column: int) -> float:
        i, k = self._columns[column - 2 * self._num]
        return (load.excess + self._problem.candidates[i].policies[k].stored_for_nothing_bytes) / GIB

    def _rounded(self, x: Array) -> dict[int, int]:
        chosen = {}
        for i, candidate in enumerate(self._problem.candidates):
            if x[i] > 0.5:
                freed = x[self._num + i] * GIB
                enough = [k for k, gain in enumerate(candidate.gains) if gain >= freed * (1 - 1e-9)]
                chosen[i] = enough[0] if enough else len(candidate.gains) - 1
        return chosen


_OPTIMAL, _INFEASIBLE = 0, 2


def _corners(candidate: CheckpointedModule) -> list[int]:
    """The policies between which mixtures are the cheapest: the lower edge of time against what is freed."""
    kept: list[int] = []
    for k in range(len(candidate.policies)):
        while len(kept) > 1 and _is_above(candidate, kept[-2], kept[-1], k):
            kept.pop()
        kept.append(k)
    return kept


def _is_above(candidate: CheckpointedModule, a: int, b: int, c: int) -> bool:
    (xa, ya), (xb, yb), (xc, yc) = ((candidate.gains[k], candidate.policies[k].recompute_ms) for k in (a, b, c))
    return (xb - xa) * (yc - ya) <= (yb - ya) * (xc - xa)


def _paths(names: Sequence[str]) -> list[list[int]]:
    """Per innermost candidate: it and those around it, where there are any."""
    found = []
    for name in names:
        if not any(is_submodule(other, name) for other in names):
            path = [i for i, other in enumerate(names) if is_self_or_submodule(name, other)]
            if len(path) > 1:
                found.append(path)
    return found


def _not_covered(loads: Sequence[Load]) -> list[Load]:
    """Of moments at which the same modules wait and the same one runs again, the highest."""
    highest: dict[tuple[tuple[int, ...], int, int], Load] = {}
    for load in loads:
        key = (load.held, load.again, load.excess)
        if key not in highest or load.size_bytes > highest[key].size_bytes:
            highest[key] = load
    return list(highest.values())
