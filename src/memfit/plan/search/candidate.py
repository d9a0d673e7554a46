"""One configuration of a search: what goes in, and what it cannot do better than."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from memfit.job import Cell, Configuration
from memfit.plan.search.bounds.least_memory import least_bytes
from memfit.plan.search.bounds.least_time import least_seconds
from memfit.plan.search.jobs import shortened_of
from memfit.plan.search.siblings import AT_LEAST, Group, Work, does_no_less, group_of, keeps_no_less, work_of
from memfit.plan.search.space import sequences_of

_ALIKE: Final = (
    *("tp", "pp", "cp", "ep", "schedule", "strategy", "checkpointing", "compile", "microbatches", "batch"),
    *("precision", "float8", "optimizer", "offload"),
)
"""The axes by which two candidates are alike."""


_USUALLY_ABOVE: Final = {"tp": 0.05, "cp": 0.1, "ep": 0.2, "pp": 0.4}
"""Predictions of Llama-3 70B on 64 H100 were about so far above their bounds."""

_COMPILED_IN_PIECES: Final = 0.2
"""Added to it where collectives cut compiled code."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """Seconds are those of one sequence of the global batch: then steps of different batches can be compared."""

    asked: Configuration
    least_seconds: float
    """0 where nothing is known of the model before it is built."""
    least_bytes: int
    kind: tuple[object, ...]

    @classmethod
    def of(cls, asked: Configuration) -> Candidate:
        kind = tuple(asked.inputs.get(axis) for axis in _ALIKE)
        if not asked.subject.model:
            return cls(asked=asked, least_seconds=0.0, least_bytes=0, kind=kind)
        seconds = least_seconds(asked) / sequences_of(asked)
        return cls(asked=asked, least_seconds=seconds, least_bytes=least_bytes(asked), kind=kind)

    @property
    def inputs(self) -> dict[str, Any]:
        return self.asked.inputs

    @property
    def usual_ratio(self) -> float:
        """How far above its bound a candidate of its sort is expected to be before any was predicted. It decides which are tried
        first, and nothing else."""
        shared = [axis for axis in _USUALLY_ABOVE if isinstance(self.inputs.get(axis), int) and self.inputs[axis] > 1]
        ratio = 1 + sum(_USUALLY_ABOVE[axis] for axis in shared)
        return ratio + (_COMPILED_IN_PIECES if shared and self.inputs.get("compile", "none") != "none" else 0.0)

    @cached_property
    def sort(self) -> tuple[object, ...]:
        """Candidates of one sort use the same parts of torch."""
        degrees = (self.inputs.get(axis, 1) > 1 for axis in ("tp", "pp", "cp", "ep"))
        return (*degrees, *(self.inputs.get(axis) for axis in ("schedule", "compile", "float8", "offload", "engine")))

    @cached_property
    def group(self) -> Group:
        """Those with which it can be compared by what they do in addition."""
        return group_of(self.asked)

    @cached_property
    def work(self) -> Work:
        return work_of(self.asked)

    @cached_property
    def features(self) -> frozenset[tuple[str, object]]:
        """What it may fail by: which degrees are above 1, and the words that are chosen."""
        degrees = ((axis, True) for axis in ("tp", "pp", "cp", "ep", "microbatches") if self.inputs.get(axis, 1) > 1)
        words = ("schedule", "compile", "checkpointing", "float8", "offload", "strategy")
        return frozenset((*degrees, *((axis, self.inputs.get(axis)) for axis in words)))

    def can_fail_like(self, other: Candidate) -> bool:
        """Where one of them cannot be predicted, most likely the other cannot."""
        return self.sort == other.sort and self.inputs.get("checkpointing") == other.inputs.get("checkpointing")

    def likeness(self, other: Candidate) -> float:
        """The share of axes on which both are the same."""
        return sum(mine == theirs for mine, theirs in zip(self.kind, other.kind, strict=True)) / len(self.kind)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """A candidate that was predicted."""

    candidate: Candidate
    cell: Cell
    is_final: bool = False
    """With all of its steps and ranks?"""

    @property
    def seconds(self) -> float | None:
        """For one sequence of the global batch; ``None`` where no time is known."""
        figures = self.cell.figures
        if figures is None or not figures.step_seconds:
            return None
        asked = self.cell.configuration
        return figures.step_seconds / (sequences_of(asked) if asked.is_model else 1)

    def bounds(self, other: Candidate) -> float:
        """Seconds that another candidate takes at least, since it does all that this one was predicted to do; 0 if it does not."""
        mine, seconds = self.candidate, self.seconds
        if seconds is None or not mine.least_seconds:
            return 0.0
        if mine.group != other.group or not does_no_less(other.work, mine.work):
            return 0.0
        return AT_LEAST * seconds * min(1.0, other.least_seconds / mine.least_seconds)

    def bounds_bytes(self, other: Candidate) -> int:
        """Bytes that another candidate needs at least, since it keeps all that this one was predicted to keep; 0 if it does not."""
        mine, figures = self.candidate, self.cell.figures
        if figures is None or not mine.least_bytes or self.is_shortened:
            return 0
        if mine.group != other.group or not keeps_no_less(other.work, mine.work):
            return 0
        return int(AT_LEAST * figures.peak_allocated)

    @property
    def is_shortened(self) -> bool:
        """Predicted with fewer microbatches than it has?"""
        asked = self.cell.configuration
        return asked.is_model and bool(shortened_of(asked, is_final=self.is_final))

    @property
    def time_ratio(self) -> float:
        """How far above its bound it is."""
        bound, seconds = self.candidate.least_seconds, self.seconds
        return seconds / bound if seconds is not None and bound else 1.0

    @property
    def memory_ratio(self) -> float:
        bound, needed = self.candidate.least_bytes, self.cell.smallest_fit
        return needed / bound if needed is not None and bound else 1.0
