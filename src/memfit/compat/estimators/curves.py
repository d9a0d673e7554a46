"""What discarding memory costs in time.

Discarding in the greedy order gives a convex curve: each group costs more for a byte than the one before it. Straight pieces
between points of such a curve lie above it, so a fit with few pieces never promises less time than is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from memfit.compat.estimators.decisions import Fate, groups_of, in_greedy_order
from memfit.compat.estimators.sac_data import SACStats, SACTradeOffStats
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is kept of a module from its forward to its backward."""

    stored_bytes: int
    stored_for_nothing_bytes: int
    """Of these, what autograd itself would not have kept: it is dropped as soon as the module was run again."""
    recompute_ms: float


def policies_of(stats: SACStats) -> list[Policy]:
    """The policies of the greedy order: from as much kept as can be to as little as can be."""
    saved = set(stats.saved_autograd_ops)
    groups = groups_of(stats)
    kept = [group for group in groups if group.fate is not Fate.RECOMPUTED]
    stored = sum(group.memory for group in kept)
    for_nothing = sum(stats.memory[i] for group in kept for i in group.operators if i not in saved)
    recompute = sum(group.runtime for group in groups if group.fate is Fate.RECOMPUTED)
    policies = [Policy(stored_bytes=stored, stored_for_nothing_bytes=for_nothing, recompute_ms=recompute)]
    for group in in_greedy_order(groups):
        stored -= group.memory
        for_nothing -= sum(stats.memory[i] for i in group.operators if i not in saved)
        recompute += group.runtime
        if group.memory:  # what holds nothing is kept
            policies.append(Policy(stored_bytes=stored, stored_for_nothing_bytes=for_nothing, recompute_ms=recompute))
        else:
            recompute -= group.runtime
    return policies


def trade_off(stats: SACStats, n_segments: int | None) -> SACTradeOffStats:
    """A module's curve, and its best fit with the given number of straight pieces; all of its pieces where no number is given."""
    memory, runtime = sum(stats.memory), sum(stats.runtimes)
    policies = policies_of(stats)
    curve = OrderedDict(
        (1 - policy.stored_bytes / memory if memory else 0.0, policy.recompute_ms / runtime if runtime else 0.0)
        for policy in policies
    )
    x, y = np.array(list(curve)), np.array(list(curve.values()))
    corners = _corners(x, y) if n_segments is None else _best_breaks(x, y, n_segments)
    slopes = np.diff(y[corners]) / np.diff(x[corners])
    return SACTradeOffStats(
        n_segments=len(slopes),
        slopes=slopes.tolist(),
        intercepts=(y[corners][:-1] - slopes * x[corners][:-1]).tolist(),
        fit_breaks=x[corners].tolist(),
        tradeoff_curve=curve,
        sac_memory=memory,
        sac_runtime=runtime,
    )


def _corners(x: Array, y: Array) -> Array:
    """Where the curve turns: equal layers give equal groups, and a piece for each of them would be one piece."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1 and _turn(x, y, kept[-2], kept[-1], i) <= 1e-12:
            kept.pop()
        kept.append(i)
    return np.array(kept)


def _turn(x: Array, y: Array, a: int, b: int, c: int) -> float:
    return float((x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a]))


def _best_breaks(x: Array, y: Array, n_segments: int) -> Array:
    """The corners of the polyline with that many pieces whose largest distance from the curve is smallest."""
    corners = _corners(x, y)
    count = len(corners)
    if count - 1 <= n_segments:
        return corners
    cx, cy = x[corners], y[corners]
    error = np.zeros((count, count))
    for a in range(count):
        for b in range(a + 2, count):
            chord = cy[a] + (cx[a + 1 : b] - cx[a]) * (cy[b] - cy[a]) / (cx[b] - cx[a])
            error[a, b] = np.max(chord - cy[a + 1 : b])
    best, came_from = error[0].copy(), []
    for _ in range(n_segments - 1):
        through = np.maximum(best[:, None], error)
        through[np.tril_indices(count)] = np.inf
        came_from.append(np.argmin(through, axis=0))
        best = np.minimum.reduce(through, axis=0)
    breaks = [count - 1]
    for origins in reversed(came_from):
        breaks.append(int(origins[breaks[-1]]))
    return corners[sorted({0, *breaks})]
