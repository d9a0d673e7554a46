"""What a watched run is warned of: memory that grows from step to step, and memory that is reserved but cannot be used.

::

    every step   the level at its end ──> do the lowest levels of eight steps rise, three times in a row?
                                            │ yes
    some steps   recorded in full, with stacks ──> blocks that were born in the first of them and are still there after the last
                                            │ some
    alarm        bytes a step, where they were allocated, by which line

Caches that warm up grow too, but less and less, and stop; garbage that waits for Python's collector goes down again. Neither raises
the lowest level of eight steps three times in a row by amounts of one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memfit.allocator import Requests, replay
from memfit.allocator.alloc_conf import parse_alloc_conf
from memfit.allocator.verdict import EXPANDABLE, USUAL_SETTINGS
from memfit.units import MIB, format_bytes

if TYPE_CHECKING:
    from memfit.record.sources.allocator.joining import Joiner, Survivor

SPAN: Final = 8
"""Steps whose lowest level is taken."""
NUM_SPANS: Final = 3
CLOSE_STEPS: Final = 4
"""Number of steps that are recorded with stacks."""
LEAST_GROWTH: Final = 64 * 1024
"""A rise of less than this in a span is nothing."""
PATIENCE: Final = 200
"""Steps to wait before looking closely again, where nothing was found."""
NEARLY_FULL: Final = 0.8
UNUSABLE: Final = 0.1
"""Shares of a device: the least that is reserved, and the least of that beyond what was ever in use."""


@dataclass(frozen=True)
class StepFigures:
    """A device at the end of a step."""

    device: str
    capacity: int
    first_step: int
    last_step: int
    time_ns: int
    has_events: int
    peak: int
    allocated: int
    reserved: int
    active: int
    inactive_split: int
    largest_free: int
    """-1 where it is not known."""

    @property
    def step(self) -> int:
        return self.last_step

    def scalars(self) -> dict[str, float]:
        """For loggers."""
        figures = {"peak": self.peak, "allocated": self.allocated, "reserved": self.reserved, "inactive_split": self.inactive_split}
        return {f"memfit/{name}_bytes": float(value) for name, value in figures.items()}


class AlarmWatch:
    """Told of every step of one device. Says when to look closely, and what was found."""

    def __init__(self) -> None:
        self._levels: list[int] = []
        self._floors: list[int] = []
        self._quiet_until = 0
        self._began = -1
        self._told_of: set[str] = set()

    @property
    def looks_closely(self) -> bool:
        """Are steps wanted in full, with stacks?"""
        return self._began >= 0

    def is_done(self, step: int) -> bool:
        return self._began >= 0 and step >= self._began + CLOSE_STEPS

    def note(self, figures: StepFigures) -> None:
        """A step ended."""
        if figures.step < 0 or self.looks_closely:
            return
        self._levels.append(figures.allocated)
        if len(self._levels) == SPAN:
            self._floors = [*self._floors, min(self._levels)][-(NUM_SPANS + 1) :]
            self._levels = []
            if figures.step >= self._quiet_until and is_steady_growth(self._floors):
                self._began = figures.step + 1

    def conclude(self, figures: StepFigures, joiner: Joiner, path_of: Callable[[int], str]) -> list[str]:
        """What stays, once enough steps were looked at closely."""
        first = self._began
        self._began, self._floors, self._levels = -1, [], []
        # What the last steps made may be on its way: their losses, the next batch.
        num_steps = CLOSE_STEPS - 2
        found = joiner.survivors(first, first + num_steps - 1)
        self._quiet_until = figures.step + PATIENCE
        alarms = [_leak_text(survivor, num_steps, path_of, figures.step) for survivor in found if survivor.num_blocks >= num_steps]
        return [alarm for alarm in alarms[:3] if self._is_new(alarm.partition(" at step ")[0])]

    def fragmentation(
        self, figures: StepFigures, requests: Callable[[], Requests], torch_version: str, alloc_conf: str
    ) -> list[str]:
        """Where much of a nearly full device is reserved beyond the peak: the setting that would help, tried by replay.

        What is reserved and free is reused. What is reserved beyond the highest that was ever in use is there because free pieces
        did not fit what was asked for.
        """
        unusable = figures.reserved - figures.peak
        if not figures.capacity or figures.reserved < NEARLY_FULL * figures.capacity or unusable < UNUSABLE * figures.capacity:
            return []
        if not self._is_new(f"fragmentation of {figures.device}"):
            return []
        left = figures.capacity - figures.reserved
        helps = best_setting(requests(), torch_version, alloc_conf)
        advice = f"{helps[0]} would reserve {format_bytes(helps[1])} less, by replay" if helps else "no setting helps, by replay"
        return [
            f"fragmentation: at step {figures.step}, {figures.device} has reserved {format_bytes(figures.reserved)}, "
            f"{format_bytes(unusable)} more than was ever in use, with {format_bytes(left)} left: {advice}"
        ]

    def frozen_state(self, found: Sequence[tuple[str, int]], step: int) -> list[str]:
        """Optimizer state of parameters that are not trained."""
        total = sum(size for _, size in found)
        if total < MIB or not self._is_new("optimizer state of frozen parameters"):
            return []
        names = ", ".join(name for name, _ in found[:3]) + (", ..." if len(found) > 3 else "")
        return [
            f"leak: at step {step}, {format_bytes(total)} of optimizer state belong to {len(found)} frozen parameters: {names}. "
            "Give the optimizer only parameters that are trained"
        ]

    def _is_new(self, what: str) -> bool:
        is_new = what not in self._told_of
        self._told_of.add(what)
        return is_new


def is_steady_growth(floors: Sequence[int]) -> bool:
    """Do the lowest levels rise span by span, by amounts that do not become ever smaller?"""
    if len(floors) <= NUM_SPANS:
        return False
    rises = [after - before for before, after in itertools.pairwise(floors)]
    return min(rises) >= LEAST_GROWTH and rises[-1] >= rises[0] / 2


def best_setting(requests: Requests, torch_version: str, alloc_conf: str) -> tuple[str, int] | None:
    """The setting under which the run would reserve least, and by how much; ``None`` where none is better."""
    now = replay(requests, parse_alloc_conf(alloc_conf, torch_version)).peak_reserved
    tried = {conf: replay(requests, parse_alloc_conf(conf, torch_version)).peak_reserved for conf in USUAL_SETTINGS}
    # Of settings that are as good, expandable segments are the simplest.
    best = min(tried, key=lambda conf: (tried[conf], conf != EXPANDABLE))
    return (best, now - tried[best]) if tried[best] < now else None


def _leak_text(survivor: Survivor, num_steps: int, path_of: Callable[[int], str], step: int) -> str:
    where = path_of(survivor.module)
    running = f" in {survivor.phase.label}" if survivor.phase is not None else " outside of all modules"
    of_module = f" of {where or 'the model'}" if survivor.module >= 0 else ""
    a_step = format_bytes(survivor.num_bytes // num_steps)
    return f"leak: {a_step} a step stay, allocated{running}{of_module} by {survivor.op} at step {step - CLOSE_STEPS} and after"
