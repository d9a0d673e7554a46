"""From what was measured to rates: the numbers of a file of rates are moved until the clock says what the card did.

::

    kinds      all times, all bandwidths, all arithmetic, all of the tensor cores, together
    sections   the same, for each section of the file: what nobody measured goes with the rest of its section
    leaves     each number by itself, as far as measured calls depend on it

Each round asks how every call's price follows from a number (by making it a little larger), and solves for the steps that bring
prices nearest to what was measured. Calls that no price fits count less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from memfit.data import parse_table
from memfit.hardware import Gpu
from memfit.timing import Call, KernelSettings, Rates, price
from memfit.timing.leaves import Leaf, find_leaves, scaled
from memfit.timing.rates import Row

NUDGE: Final = 1.01
LONGEST_STEP: Final = math.log(1.6)
"""Of a logarithm, in one round: further away prices follow other numbers."""
SMALLEST_ERROR: Final = 0.02
"""Errors below it count alike: measurements repeat no better."""
FURTHEST: Final = math.log(8)
"""A number that would have to move further is not what was wrong."""

STAGES: Final[tuple[tuple[Callable[[Leaf], Hashable], float, int], ...]] = (
    (lambda leaf: leaf.kind, 1e-6, 4),
    (lambda leaf: (leaf.section, leaf.kind), 3e-3, 4),
    (lambda leaf: leaf.path[:-2] if "tiles" in leaf.path else leaf.path, 3e-3, 8),
)
"""What moves together, how much it is held back, and rounds. Tiles stay together: which of them a product took is not known."""


@dataclass(frozen=True)
class TimedCall:
    """A call and the seconds that its kernels took, alone on a card that was not hot."""

    call: Call
    seconds: float
    allow_tf32: bool = False

    @property
    def settings(self) -> KernelSettings:
        return KernelSettings(allow_tf32=self.allow_tf32, is_sustained=False)


@dataclass(frozen=True)
class FittedRates:
    tables: dict[str, Any]
    """Of a file of rates."""
    before: float
    after: float
    """How far prices were from what was measured, in the median, as a share."""
    measured: frozenset[str]
    """Sections on which measured calls depend."""


def fit(timed: Sequence[TimedCall], template: Mapping[str, Any], gpu: Gpu) -> FittedRates:
    """Rates with which the clock says what was measured. What no call depends on is scaled with the rest of its section, or with
    its kind. ``template`` is a file of rates, already in proportion to the card's peaks."""
    rates = _rates(template)
    usable = [each for each in timed if each.seconds > 0 and price(each.call, gpu, each.settings, rates).seconds > 0]
    tables, moved = dict(template), _Moves(usable, gpu)
    before = moved.off(tables)
    for grouped, held_back, rounds in STAGES:
        for _ in range(rounds):
            tables = moved.step(tables, template, grouped, held_back)
    return FittedRates(tables, before, moved.off(tables), frozenset(moved.sections))


class _Moves:
    """Steps towards what was measured."""

    def __init__(self, timed: Sequence[TimedCall], gpu: Gpu) -> None:
        self._timed, self._gpu = timed, gpu
        self._measured = np.log([each.seconds for each in timed])
        self._depends: dict[str, list[int]] = {}
        self.sections: set[str] = set()

    def off(self, tables: Mapping[str, Any]) -> float:
        """The median of errors, as a share."""
        return float(np.expm1(np.median(np.abs(self._prices(tables) - self._measured)))) if self._timed else 0.0

    def step(
        self, tables: Mapping[str, Any], template: Mapping[str, Any], grouped: Callable[[Leaf], Hashable], held_back: float
    ) -> dict[str, Any]:
        now = self._prices(tables)
        groups: dict[Hashable, list[Leaf]] = {}
        for leaf in find_leaves(tables):
            groups.setdefault(grouped(leaf), []).append(leaf)
        slopes, moving = self._slopes(tables, now, list(groups.values()))
        if not moving:
            return dict(tables)
        errors = self._measured - now
        weights = 1 / np.maximum(np.abs(errors), SMALLEST_ERROR)
        weighted = slopes * weights[:, None]
        left = slopes.T @ weighted + held_back * np.trace(slopes.T @ weighted) / len(moving) * np.eye(len(moving))
        steps = np.clip(np.linalg.solve(left, weighted.T @ errors), -LONGEST_STEP, LONGEST_STEP)
        factors = {leaf: math.exp(by) for leaves, by in zip(moving, steps, strict=True) for leaf in leaves}
        return scaled(tables, _within_reach(tables, template, factors))

    def _prices(self, tables: Mapping[str, Any]) -> Any:
        return self._log_prices(_rates(tables))

    def _log_prices(self, rates: Rates, which: Sequence[int] | None = None) -> Any:
        chosen = self._timed if which is None else [self._timed[at] for at in which]
        return np.log([price(each.call, self._gpu, each.settings, rates).seconds for each in chosen])

    def _slopes(self, tables: Mapping[str, Any], now: Any, groups: Sequence[list[Leaf]]) -> tuple[Any, list[list[Leaf]]]:
        """How prices follow each group, and the groups that some price follows."""
        columns, moving, rates = [], [], _rates(tables)
        for leaves in groups:
            which = sorted({at for section in {leaf.section for leaf in leaves} for at in self._on(section, tables, now)})
            if not which:
                continue
            nudged = self._log_prices(_replaced(rates, scaled(tables, dict.fromkeys(leaves, NUDGE)), leaves), which)
            column = np.zeros(len(self._timed))
            column[which] = (nudged - now[which]) / math.log(NUDGE)
            if np.abs(column).max() > 0.02:
                columns.append(column)
                moving.append(leaves)
        return (np.stack(columns, axis=1) if columns else np.zeros((len(self._timed), 0))), moving

    def _on(self, section: str, tables: Mapping[str, Any], now: Any) -> list[int]:
        """Calls whose price follows from a section."""
        if section not in self._depends:
            leaves = [leaf for leaf in find_leaves(tables) if leaf.section == section]
            found: set[int] = set()
            for factor in (0.2, 5.0):
                other = self._prices(scaled(tables, dict.fromkeys(leaves, factor)))
                found |= {int(at) for at in np.flatnonzero(np.abs(other - now) > 1e-9)}
            self._depends[section] = sorted(found)
            if found:
                self.sections.add(section)
        return self._depends[section]


def _within_reach(tables: Mapping[str, Any], template: Mapping[str, Any], factors: Mapping[Leaf, float]) -> dict[Leaf, float]:
    found = {}
    for leaf, factor in factors.items():
        gone = math.log(leaf.value(tables) / leaf.value(template))
        found[leaf] = math.exp(min(max(gone + math.log(factor), -FURTHEST), FURTHEST) - gone)
    return found


def _replaced(rates: Rates, tables: Mapping[str, Any], leaves: Sequence[Leaf]) -> Rates:
    """The rates with the sections of some leaves read anew."""
    sections: dict[str, Any] = {}
    for name in {leaf.section for leaf in leaves}:
        if name == "rows":
            changed = {str(leaf.path[1]) for leaf in leaves if leaf.section == name}
            sections[name] = {**rates.rows, **{row: parse_table(Row, tables[name][row], name) for row in changed}}
        else:
            sections[name] = parse_table(type(getattr(rates, name)), tables[name], name)
    return replace(rates, **sections)


def _rates(tables: Mapping[str, Any]) -> Rates:
    return parse_table(Rates, tables, "rates")
