"""As much of pulp as PyTorch's planner uses, over scipy: its faults can be shown where pulp is not installed.

Like pulp, it calls a plan that was found when the time ran out solved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

LpInteger, LpMinimize, LpMaximize = "Integer", 1, -1
LpStatus = {1: "Optimal", 0: "Not Solved", -1: "Infeasible"}


class Sum:
    """Coefficients of variables, and a constant."""

    def __init__(self, terms: dict[LpVariable, float] | None = None, constant: float = 0.0) -> None:
        self.terms, self.constant = dict(terms or {}), constant

    def __add__(self, other: Sum | float) -> Sum:
        other = other if isinstance(other, Sum) else Sum(constant=other)
        terms = dict(self.terms)
        for variable, factor in other.terms.items():
            terms[variable] = terms.get(variable, 0.0) + factor
        return Sum(terms, self.constant + other.constant)

    def __mul__(self, factor: float) -> Sum:
        return Sum({variable: factor * own for variable, own in self.terms.items()}, factor * self.constant)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Sum:
        return self * -1

    def __sub__(self, other: Sum | float) -> Sum:
        return self + other * -1

    def __rsub__(self, other: float) -> Sum:
        return self * -1 + other

    def __le__(self, other: Sum | float) -> Constraint:
        return Constraint(self - other, -np.inf, 0.0)

    def __ge__(self, other: Sum | float) -> Constraint:
        return Constraint(self - other, 0.0, np.inf)

    def __eq__(self, other: object) -> Constraint:  # type: ignore[override]
        return Constraint(self - other, 0.0, 0.0)  # type: ignore[operator]

    __hash__ = object.__hash__


class LpVariable(Sum):
    def __init__(self, name: str, lowBound: float = -np.inf, upBound: float | None = None, cat: str = "") -> None:
        super().__init__({self: 1.0})
        self.low, self.high = lowBound, np.inf if upBound is None else upBound
        self.is_integer, self.varValue = cat == LpInteger, 0.0

    @staticmethod
    def matrix(
        name: str, indices: Sequence[int], lowBound: float = -np.inf, upBound: float | None = None, cat: str = ""
    ) -> list[LpVariable]:
        return [LpVariable(f"{name}_{i}", lowBound, upBound, cat) for i in indices]


class Constraint:
    def __init__(self, total: Sum, low: float, high: float) -> None:
        self.total, self.low, self.high = total, low - total.constant, high - total.constant


class PULP_CBC_CMD:
    def __init__(self, gapRel: float, timeLimit: float, msg: int) -> None:
        self.options = {"mip_rel_gap": gapRel, "time_limit": timeLimit}


class LpProblem:
    def __init__(self, name: str, sense: int) -> None:
        self.sense, self.objective = sense, Sum()
        self.constraints: list[Constraint] = []

    def __iadd__(self, part: Constraint | Sum) -> LpProblem:
        if isinstance(part, Constraint):
            self.constraints.append(part)
        else:
            self.objective = part
        return self

    def solve(self, solver: PULP_CBC_CMD) -> int:
        known = {variable for constraint in self.constraints for variable in constraint.total.terms} | set(self.objective.terms)
        variables = sorted(known, key=id)
        column = {variable: i for i, variable in enumerate(variables)}
        matrix = np.zeros((len(self.constraints), len(variables)))
        for row, constraint in enumerate(self.constraints):
            for variable, factor in constraint.total.terms.items():
                matrix[row, column[variable]] = factor
        cost = np.zeros(len(variables))
        for variable, factor in self.objective.terms.items():
            cost[column[variable]] = self.sense * factor
        done = milp(
            cost,
            integrality=[variable.is_integer for variable in variables],
            bounds=Bounds([variable.low for variable in variables], [variable.high for variable in variables]),
            constraints=LinearConstraint(matrix, [one.low for one in self.constraints], [one.high for one in self.constraints]),
            options=solver.options,
        )
        if done.x is None:
            return -1
        for variable, found in zip(variables, done.x.tolist(), strict=True):
            variable.varValue = found
        return 1


def lpSum(parts: Iterable[Sum]) -> Sum:
    total = Sum()
    for part in parts:
        total = total + part
    return total


def lpDot(left: Iterable[Sum | float], right: Iterable[Sum | float]) -> Sum:
    return lpSum(one * other if isinstance(one, Sum) else other * one for one, other in zip(left, right, strict=True))  # type: ignore[operator]


def value(total: Sum) -> float:
    return total.constant + sum(factor * variable.varValue for variable, factor in total.terms.items())
