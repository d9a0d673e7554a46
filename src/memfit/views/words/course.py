"""The course of a run in words: which batch was the largest, which evaluation the highest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from memfit.analysis import INIT, Course, Leg
from memfit.ledger import ActivityKind

FEWEST_STEPS: Final = 4
"""Of fewer, a table of all steps says everything."""
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS: Final = "_.-:=+*#"


@dataclass(frozen=True)
class Highlight:
    """A leg of the run that is worth a look."""

    what: str
    leg: Leg

    @property
    def when(self) -> str:
        if self.leg.kind is ActivityKind.TRAINING:
            return f"step {self.leg.number}"
        return "before the first step" if self.leg.step == INIT else f"after step {self.leg.step}"


def is_worth_drawing(course: Course) -> bool:
    return len(course.steps) >= FEWEST_STEPS or bool(course.evaluations)


def highlights(course: Course) -> Iterator[Highlight]:
    """The step, evaluation and save that needed most, and the step with the largest batch."""
    highest, largest = course.highest_step, course.largest_batch
    if highest is not None:
        is_both = largest is not None and largest.batch == highest.batch
        yield Highlight("highest step, with the largest batch" if is_both and _several(course) else "highest step", highest)
        if largest is not None and not is_both:
            yield Highlight("largest batch", largest)
    for kind, found, top in (
        ("evaluation", course.evaluations, course.highest_evaluation),
        ("save", course.saves, course.highest_save),
    ):
        if top is not None:
            yield Highlight(kind if len(found) == 1 else f"highest of {len(found):,} {kind}s", top)


def _several(course: Course) -> bool:
    """Do batches differ at all?"""
    return len({leg.batch for leg in course.steps}) > 1


def sparkline(course: Course, width: int, *, ascii_only: bool) -> str:
    """Peaks over steps, from nothing to the highest: one character for each step, or for the highest of several."""
    peaks = [leg.peak_bytes for leg in course.steps]
    most, levels = max(peaks, default=0), _PLAIN_LEVELS if ascii_only else _LEVELS
    num = min(width, len(peaks))
    bounds = [place * len(peaks) // num for place in range(num + 1)] if num else []
    highest = [max(peaks[first:end]) for first, end in pairwise(bounds)]
    return "".join(levels[min(len(levels) - 1, len(levels) * peak // most)] if most else levels[0] for peak in highest)
