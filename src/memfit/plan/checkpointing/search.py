"""The search: solve, apply, predict, tell the solver what it really cost, and solve again.

::

    kept bytes   least ────────── lo (fits) ──── ? ──── hi (does not) ────────── all that autograd keeps
                                            capacity of the next solution: where the budget lies between what lo and hi needed

What people write by hand comes first: all units computed again, every second, every third. Then units as a whole, then operators,
unless the step waits for its host. The solver knows sums of bytes; the allocator knows what they come to. What does not fit is
tried with its levels on other units. Each solution moves ``lo`` or ``hi``, so the search ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from memfit.errors import SolverTimeoutError
from memfit.plan.checkpointing.levels import Level, levels_of
from memfit.plan.checkpointing.placements import Placement
from memfit.plan.checkpointing.solver import Kind, Solution, solve
from memfit.plan.checkpointing.trials import Trial, Trials
from memfit.plan.checkpointing.units import UnitKind
from memfit.plan.policy import CheckpointingPolicy, UnitPolicy
from memfit.units import format_bytes

WORTH: Final = 0.003
"""Of a step's time: the search ends when no plan could be faster by more."""

SIMPLE_WAYS: Final = (1, 2, 3)
"""Every unit, every second, every third: whatever else is found, it is no slower than these where they fit."""

MOST_NUDGES: Final = 12
"""So often the capacity is raised where a solution is the one that is known, before the search ends."""


@dataclass(frozen=True)
class _Point:
    size_bytes: float
    """What the solver counts."""
    need: float
    """What the allocator needs."""


class Search:
    """Finds the fastest policy that fits."""

    def __init__(
        self,
        kinds: Sequence[UnitKind],
        trials: Trials,
        *,
        max_trials: int,
        deadline: float,
        link_bytes_per_second: float | None,
        progress: Callable[[str], None],
    ) -> None:
        self._units, self._trials, self._limit = kinds, trials, trials.budget_bytes
        self._max_trials, self._deadline, self._progress = max_trials, deadline, progress
        operators = [Kind(len(kind.units), levels_of(kind.one)) for kind in kinds]
        # Units as a whole come first: where the host is the slow one, choosing operators costs more than it saves.
        on_the_gpu = [[Kind(kind.num_units, _whole(kind.levels)) for kind in operators], operators]
        offloading = [Kind(len(kind.units), levels_of(kind.one, link_bytes_per_second)) for kind in kinds]
        self._stages = [on_the_gpu] if link_bytes_per_second is None else [on_the_gpu, [offloading]]
        """Each has trials of its own: offloading is on top of what is asked without it."""
        self._kinds = self._stages[-1][-1]
        self._trials_left = 0
        self._placements = list(Placement)
        """The one that fitted last comes first."""
        self.is_out_of_time = False

    @property
    def can_do_anything(self) -> bool:
        return any(len(kind.levels) > 1 for kind in self._kinds)

    def least(self) -> Trial:
        """As little as possible is kept."""
        return self._trials.run(self._policy(self._extreme(0)))

    def run(self, untouched: Trial) -> None:
        """Tries policies between all that autograd keeps, which does not fit, and the least of each stage."""
        for policy in self.simple_ways:
            self._progress(_told(self._trials.run(policy)))
        for stage in self._stages:
            self._trials_left = self._max_trials
            for self._kinds in stage:
                if self._chooses_operators and self._waits_for_its_host:
                    continue  # none of them would be taken
                least = self.least()
                self._correct_compiled(untouched, least)
                self._correct_seconds(untouched, least)
                self._close_in(untouched, self.least())

    @property
    def _chooses_operators(self) -> bool:
        return any(level.choices for kind in self._kinds for level in kind.levels)

    @property
    def _waits_for_its_host(self) -> bool:
        """Does the GPU wait for its host in the fastest plan that computes units again as a whole?"""
        whole = [trial for trial in self._trials.all if trial.fits and not trial.chooses_operators]
        return bool(whole) and min(whole, key=lambda trial: trial.seconds).waits_for_its_host

    @cached_property
    def simple_ways(self) -> list[CheckpointingPolicy]:
        """What people write by hand: all units computed again, every second, every third, each as a whole."""
        names = [unit.name for unit in sorted((one for kind in self._units for one in kind.units), key=lambda one: one.order)]
        able = {one.name for kind in self._units for one in kind.units if not one.refusal}
        found = []
        for every in SIMPLE_WAYS:
            again = tuple(name for name in names[::every] if name in able)
            if again:
                untouched = tuple(name for name in names if name not in again)
                found.append(CheckpointingPolicy(groups=(UnitPolicy(units=again),), untouched=untouched))
        return found

    def _close_in(self, untouched: Trial, least: Trial) -> None:
        """Solves and tries until nothing faster is between what fits and what does not."""
        if not least.completes:
            return
        lo = _Point(self._extreme(0).size_bytes, least.need)
        hi = _Point(self._extreme(-1).size_bytes, max(untouched.certain_need, self._limit + 1))
        known = {self._extreme(0).counts}
        moved = ""
        share = _share(self._limit, lo, hi)
        while self._trials_left > 0:
            try:
                solution = self._next(lo, hi, share, known)
            except SolverTimeoutError:  # what was found until now is a plan
                self.is_out_of_time = True
                return
            if solution is None:
                return
            known.add(solution.counts)
            trial = self._best_placed(solution)
            self._learn_seconds(solution, trial.seconds - untouched.seconds)
            fits = trial.fits
            if fits:
                lo = _Point(solution.size_bytes, trial.need)
            else:
                hi = _Point(solution.size_bytes, max(trial.certain_need, self._limit + 1))
            # What is needed does not grow evenly: where one side came closer twice, the next is half-way.
            share = 0.5 if moved == str(fits) else _share(self._limit, lo, hi)
            moved = str(fits)

    def _best_placed(self, solution: Solution) -> Trial:
        """Tries placements until one fits; where none does, the trial that needs least."""
        tried: list[Trial] = []
        for placement in tuple(self._placements):
            policy = self._policy(solution, placement)
            if tried and (self._trials_left <= 0 or time.monotonic() > self._deadline):
                break
            self._trials_left -= not self._trials.knows(policy)
            trial = self._trials.run(policy)
            tried.append(trial)
            self._progress(_told(trial))
            if trial.fits:
                self._placements.sort(key=lambda other: other is not placement)
                return trial
            if trial.prediction.peak_allocated > self._limit:  # no order of freed memory mends that
                break
        return min(tried, key=lambda trial: trial.certain_need)

    def _next(self, lo: _Point, hi: _Point, share: float, known: set[tuple[tuple[int, ...], ...]]) -> Solution | None:
        """The best solution that is not known yet, for a capacity between the two."""
        capacity = lo.size_bytes + share * (hi.size_bytes - lo.size_bytes)
        worth = WORTH * max(trial.seconds for trial in self._trials.all)
        best = solve(self._kinds, hi.size_bytes - 1, self._deadline - time.monotonic())
        now = solve(self._kinds, lo.size_bytes)
        if best is None or now is None or now.seconds - best.seconds < worth:
            return None
        for _ in range(MOST_NUDGES):
            solution = solve(self._kinds, capacity, self._deadline - time.monotonic())
            if solution is not None and solution.counts not in known:
                return solution
            capacity += (hi.size_bytes - capacity) / 4
        return None

    def _correct_compiled(self, untouched: Trial, least: Trial) -> None:
        """A compiler keeps less than autograd does: how much, is known from the two predictions."""
        sizes = [self._extreme(place).size_bytes for place in (0, -1)]
        share = min(1.0, (untouched.smallest_fit - least.smallest_fit) / max(sizes[1] - sizes[0], 1))
        corrected = []
        for unit, kind in zip(self._units, self._kinds, strict=True):
            first, last = kind.levels[0], kind.levels[-1]
            if unit.one.is_compiled and len(kind.levels) > 1:
                size = first.size_bytes + int(share * (last.size_bytes - first.size_bytes))
                between = [level for level in kind.levels[:-1] if level.size_bytes < size or level is first]
                kind = Kind(kind.num_units, [*between, replace(last, size_bytes=size)])
            corrected.append(kind)
        self._kinds = corrected

    def _correct_seconds(self, untouched: Trial, least: Trial) -> None:
        """Computing a unit again costs the host something whatever is kept: what the prediction took longer than its kernels."""
        counted, num_units = self._extreme(0), 0
        for kind in self._kinds:
            num_units += kind.num_units * (not kind.levels[0].is_untouched)
        extra = max(0.0, least.seconds - untouched.seconds - counted.seconds) / max(num_units, 1)
        self._kinds = [
            Kind(
                kind.num_units,
                [level if level.is_untouched else replace(level, seconds=level.seconds + extra) for level in kind.levels],
            )
            for kind in self._kinds
        ]

    def _learn_seconds(self, solution: Solution, seconds: float) -> None:
        """Where choosing operators cost more than their kernels, all levels that choose cost that much more."""
        chosen = [
            count
            for kind, counts in zip(self._kinds, solution.counts, strict=True)
            for level, count in zip(kind.levels, counts, strict=True)
            if level.choices
        ]
        extra = (seconds - solution.seconds) / max(sum(chosen), 1)
        if sum(chosen) and extra > 0:
            self._kinds = [
                Kind(kind.num_units, [replace(one, seconds=one.seconds + extra * bool(one.choices)) for one in kind.levels])
                for kind in self._kinds
            ]

    def _extreme(self, place: int) -> Solution:
        """All units at their first level, or at their last."""
        counts, size, seconds = [], 0, 0.0
        for kind in self._kinds:
            row = [0] * len(kind.levels)
            row[place] = kind.num_units
            counts.append(tuple(row))
            size += kind.num_units * kind.levels[place].size_bytes
            seconds += kind.num_units * kind.levels[place].seconds
        return Solution(tuple(counts), seconds, size)

    def _policy(self, solution: Solution, placement: Placement = Placement.FRONT) -> CheckpointingPolicy:
        """Which unit gets which level."""
        groups: list[UnitPolicy] = []
        untouched: list[str] = []
        for unit, kind, counts in zip(self._units, self._kinds, solution.counts, strict=True):
            places = placement.levels_of_units(counts)
            for number, level in enumerate(kind.levels):
                names = tuple(name for name, place in zip(unit.names, places, strict=True) if place == number)
                if names and level.is_untouched:
                    untouched += names
                elif names:
                    groups.append(UnitPolicy(units=names, choices=level.choices))
        return CheckpointingPolicy(groups=tuple(groups), untouched=tuple(untouched))


def _whole(levels: Sequence[Level]) -> list[Level]:
    """The level that chooses least, and the unit as it is."""
    return [*([min(levels[:-1], key=lambda level: len(level.choices))] if len(levels) > 1 else []), levels[-1]]


def _share(limit: int, lo: _Point, hi: _Point) -> float:
    """Where the limit lies between what the two need."""
    return min(max((limit - lo.need) / max(hi.need - lo.need, 1), 0.05), 0.95)


def _told(trial: Trial) -> str:
    return f"{format_bytes(trial.smallest_fit)}, {1e3 * trial.seconds:.1f} ms a step: {'fits' if trial.fits else 'does not fit'}"
