"""How many units of each kind get which level: an integer programme, solved by HiGHS.

::

    least   sum of seconds(kind, level) * count(kind, level)
    where   sum of bytes(kind, level) * count(kind, level) <= capacity,   counts of a kind add up to its units

Equal units are counted, not told apart: 126 equal layers are as easy as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.errors import SolverTimeoutError
from memfit.plan.checkpointing.levels import Level


@dataclass(frozen=True)
class Kind:
    """Equal units with what can be done with each."""

    num_units: int
    levels: Sequence[Level]


@dataclass(frozen=True)
class Solution:
    """Counts by kind and level."""

    counts: tuple[tuple[int, ...], ...]
    seconds: float
    size_bytes: int


def solve(kinds: Sequence[Kind], capacity_bytes: float, seconds_left: float = math.inf) -> Solution | None:
    """The least seconds within a capacity; ``None`` where even the least bytes are more."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # only here: applying a plan needs no solver

    seconds = np.array([level.seconds for kind in kinds for level in kind.levels])
    size = np.array([level.size_bytes for kind in kinds for level in kind.levels], dtype=float)
    least = sum(kind.num_units * min(level.size_bytes for level in kind.levels) for kind in kinds)
    if least > capacity_bytes:
        return None
    if seconds_left <= 0:
        raise SolverTimeoutError(0.0, "the time was over before the solver began")
    owner = np.repeat(np.arange(len(kinds)), [len(kind.levels) for kind in kinds])
    is_of_kind = (owner == np.arange(len(kinds))[:, None]).astype(float)
    num_units = np.array([kind.num_units for kind in kinds], dtype=float)
    scale_seconds, scale_bytes = seconds.max(initial=0.0) or 1.0, size.max(initial=0.0) or 1.0
    found = milp(
        # Of equally fast ways the one that keeps less.
        c=seconds / scale_seconds + 1e-9 * size / scale_bytes,
        integrality=np.ones(len(seconds)),
        bounds=Bounds(0, num_units[owner]),
        constraints=[
            LinearConstraint(is_of_kind, num_units, num_units),
            LinearConstraint(size[None] / scale_bytes, -np.inf, capacity_bytes / scale_bytes),
        ],
        options={} if math.isinf(seconds_left) else {"time_limit": seconds_left},
    )
    if found.x is None:
        raise SolverTimeoutError(seconds_left, found.message)
    counts = np.rint(found.x).astype(int)
    return Solution(
        tuple(tuple(counts[owner == number].tolist()) for number in range(len(kinds))),
        float(counts @ seconds),
        int(counts @ size),
    )
