"""What a search found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from memfit.compare.recommendation import SAME_SPEED
from memfit.drawing import Drawn
from memfit.hardware import find_gpu
from memfit.job import Cell, Configuration, Subject
from memfit.plan.plan_file import Plan, PlanCost
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.jobs import what_was_shortened
from memfit.plan.search.space import varying_axes
from memfit.timing.basis import what_times_are_from

_WORTH_A_LINE = 0.01
"""A configuration that is faster by less than this buys nothing."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration that was predicted."""

    cell: Cell
    seconds: float
    """For one sequence of the global batch."""
    needed: int
    """Bytes that its allocator must be able to get."""
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What more memory would buy."""

    point: Point
    more_bytes: int
    faster_by: float
    """The share of the best one's time that it saves."""


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """Nothing fits: what would."""

    closest: Cell | None
    """Of those that were predicted, the one that needs least; ``None`` where none could be."""
    least_state_bytes: int
    """Weights, gradients and optimizer state alone, at the least of all configurations; 0 where it is not known."""
    world_size: int = 0
    """Number of these GPUs on which it would fit; 0 if no number that was tried does."""
    on_more_gpus: Cell | None = None
    """The configuration that fits there."""


class Unrefined(Enum):
    """Why nothing was decided operator by operator although the user wanted it."""

    NOTHING_AGAIN = "what it could be decided for fits as it is"
    ALL_IN_PARTS = "all that fits has a pipeline or microbatches"
    DOES_NOT_FIT = "nothing that was decided fits"
    IS_SLOWER = "what was decided is slower than the answer"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanSearch(Drawn):
    """The fastest way to train that fits, and what was looked at on the way."""

    subject: Subject
    gpu: str
    world_size: int
    room: int
    """Bytes that the allocator may need: of the GPU, or of the budget, less the margin."""
    capacity: int
    """The same without the margin."""
    open_axes: tuple[str, ...] = ()
    """The axes on which candidates differ, whether they were predicted or not."""
    tried: tuple[Evaluated, ...]
    best_tried: Evaluated | None
    num_candidates: int
    num_too_large: int
    """Could not fit, by their bounds."""
    num_too_slow: int
    """Could not be noticeably faster than the best, by their bounds."""
    left: tuple[Candidate, ...] = ()
    """Not predicted although they might have been faster: the search was limited or stopped."""
    was_stopped: bool = False
    varied: tuple[str, ...] = ()
    """Axes that change what is trained, and were allowed to vary."""
    batches: tuple[int, ...] = ()
    """Sequences in a step of all GPUs that were looked at, where their number may vary."""
    infeasible: Infeasible | None = None
    by_checkpointing: Plan | None = None
    """The answer, where what is computed again was decided operator by operator."""
    checkpointed: Configuration | None = None
    """The configuration that this was decided for."""
    unrefined: Unrefined | None = None
    space_assumptions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found = repr(self.plan) if self.plan is not None else "nothing fits"
        return f"PlanSearch({self.subject.name}, {found})"

    @property
    def best(self) -> Cell | None:
        """The fastest that fits with margin; ``None`` where nothing does."""
        return self.best_tried.cell if self.best_tried is not None else None

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """All that was predicted, the one that needs least memory first."""
        finals = {id(each.candidate) for each in self.tried if each.is_final}
        found = []
        for each in self.tried:
            figures = each.cell.figures
            if figures is None or each.seconds is None or (id(each.candidate) in finals and not each.is_final):
                continue
            fits = figures.fits and figures.smallest_fit <= self.room
            found.append(Point(cell=each.cell, seconds=each.seconds, needed=figures.smallest_fit, fits=fits))
        return tuple(sorted(found, key=lambda point: (point.needed, point.seconds)))

    @cached_property
    def frontier(self) -> tuple[Point, ...]:
        """Of those, the ones that nothing beats in both time and memory; the smallest first, the fastest last."""
        found: list[Point] = []
        for point in self.points:
            if not found or point.seconds < found[-1].seconds:
                found.append(point)
        return tuple(found)

    @cached_property
    def outline(self) -> tuple[Point, ...]:
        """The frontier, and the answer where another that is as fast and no larger is harder to run."""
        answer = (point for point in self.points if point.cell is self.best)
        found = {id(point): point for point in (*self.frontier, *answer)}
        return tuple(sorted(found.values(), key=lambda point: (point.needed, point.seconds)))

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """What the next bytes would buy: each configuration that does not fit, and is faster than all that need less."""
        if self.best_tried is None or self.best_tried.seconds is None:
            return ()
        fastest, found = self.best_tried.seconds, []
        for point in self.frontier:
            if point.fits or point.seconds > fastest * (1 - _WORTH_A_LINE):
                continue
            saved = 1 - point.seconds / self.best_tried.seconds
            found.append(Gain(point=point, more_bytes=max(0, point.needed - self.room), faster_by=saved))
            fastest = point.seconds
        return tuple(found)

    @property
    def gap(self) -> float:
        """How much faster than the best anything that was not predicted could be at most, as a share of its time."""
        if self.best_tried is None or self.best_tried.seconds is None:
            return 0.0
        least = min((each.least_seconds for each in self.left), default=float("inf"))
        return max(SAME_SPEED, 1 - least / self.best_tried.seconds)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted: in the search, by the prediction of its answer, and about times."""
        best, found = self.best, [*self.space_assumptions]
        if self.by_checkpointing is not None:
            found += self.by_checkpointing.assumptions
        if best is not None and best.figures is not None and self.best_tried is not None:
            found += [what_was_shortened(best.configuration, is_final=self.best_tried.is_final), *best.figures.assumptions]
        found.append(what_times_are_from(find_gpu(self.gpu), self.world_size))
        return tuple(dict.fromkeys(filter(None, found)))

    @property
    def varying(self) -> tuple[str, ...]:
        """The axes on which what was predicted differs."""
        return varying_axes([each.cell.configuration for each in self.tried])

    @cached_property
    def plan(self) -> Plan | None:
        """The answer as a plan file has it; ``None`` where nothing fits."""
        if self.by_checkpointing is not None:
            asked = self.checkpointed
            recipe = plain_recipe(asked) if asked is not None and asked.is_model else None
            return replace(self.by_checkpointing, recipe=recipe, assumptions=self.assumptions)
        best = self.best
        if best is None or best.figures is None:
            return None
        figures = best.figures
        return Plan(
            gpu=self.gpu,
            budget_bytes=self.capacity,
            world_size=self.world_size,
            recipe=plain_recipe(best.configuration),
            figures=PlanCost(
                peak_allocated_bytes=figures.peak_allocated,
                peak_reserved_bytes=figures.peak_reserved,
                smallest_fit_bytes=figures.smallest_fit,
                step_seconds=figures.step_seconds or None,
            ),
            assumptions=self.assumptions,
        )

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "gpu": self.gpu,
            "world_size": self.world_size,
            "capacity": self.capacity,
            "room": self.room,
            "best": self.best.to_json() if self.best is not None else None,
            "frontier": [point.cell.to_json() | {"within_room": point.fits} for point in self.frontier],
            "gains": [
                {"more_bytes": gain.more_bytes, "faster_by": gain.faster_by, "configuration": gain.point.cell.to_json()}
                for gain in self.gains
            ],
            "tried": [each.cell.to_json() for each in self.tried],
            "num_candidates": self.num_candidates,
            "num_too_large": self.num_too_large,
            "num_too_slow": self.num_too_slow,
            "num_left": len(self.left),
            "gap": self.gap,
            "was_stopped": self.was_stopped,
            "varied": [*self.varied],
            "batches": [*self.batches],
            "assumptions": [*self.assumptions],
            "infeasible": _infeasible_json(self.infeasible),
            "plan": self.plan.to_json() if self.plan is not None else None,
        }


def _infeasible_json(found: Infeasible | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "closest": found.closest.to_json() if found.closest is not None else None,
        "least_state_bytes": found.least_state_bytes,
        "world_size": found.world_size or None,
    }


def plain_recipe(asked: Configuration) -> dict[str, Any]:
    """A recipe as JSON has it."""
    kept = {name: value for name, value in asked.inputs.items() if name not in ("gpu", "world_size")}
    return {name: [*value] if isinstance(value, tuple) else value for name, value in kept.items()}
