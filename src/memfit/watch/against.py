"""Is the run as it was predicted? Said while it lasts, once the first steps are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from memfit.analysis.diff.runs import Diff, diff_ledgers
from memfit.ledger import Ledger
from memfit.ledger.cutting import cut
from memfit.units import format_bytes

if TYPE_CHECKING:
    from memfit.record.sources.allocator.alarms import StepFigures
    from memfit.record.tracker import Tracker

STEPS: Final = (1, 2)
"""After these steps the run is compared: optimizer state is there by then."""
NOTICED: Final = 0.01
"""A difference of this share of the peak is said."""


class Against:
    """Called with the figures of each step; compares with a prediction and says where both part."""

    def __init__(self, predicted: Path, tracker: Callable[[], Tracker | None], say: Callable[[str], None]) -> None:
        self._predicted = Ledger.load(predicted).check()
        self._path, self._tracker, self._say = predicted, tracker, say
        self._highest = 0

    def __call__(self, figures: StepFigures) -> None:
        tracker = self._tracker()
        if tracker is None or figures.step < STEPS[0]:
            return
        if figures.step in STEPS:
            for line in describe(diff_ledgers(*same_steps(self._predicted, tracker.ledger_so_far())), figures.step):
                self._say(line)
        predicted = max(self._predicted.device_peak_bytes, default=0)
        if figures.step > STEPS[-1] and figures.peak > max(predicted * (1 + NOTICED), self._highest * (1 + NOTICED)):
            self._say(f"step {figures.step}: the peak is {format_bytes(figures.peak)}, predicted were {format_bytes(predicted)}")
        self._highest = max(self._highest, figures.peak)


def same_steps(predicted: Ledger, watched: Ledger) -> tuple[Ledger, Ledger]:
    """Both up to the end of the last step that both have."""
    last = min(int(ledger.step_numbers.max(initial=-1)) for ledger in (predicted, watched))
    return _up_to(predicted, last), _up_to(watched, last)


def _up_to(ledger: Ledger, last: int) -> Ledger:
    following = np.flatnonzero(ledger.step_numbers > last)
    if not len(following):
        return ledger
    shortened = cut(ledger, int(ledger.step_starts[following[0]]))
    return replace(shortened, info=ledger.info)


def describe(diff: Diff, step: int) -> list[str]:
    """Where a prediction and the run part, in a few lines; the first says whether they do."""
    figure = diff.prediction_error if diff.compares_a_prediction else diff.headline
    measured, predicted = figure.before_bytes, figure.after_bytes
    share = abs(measured - predicted) / max(predicted, 1)
    head = f"step {step}: the peak is {format_bytes(measured)}, predicted {format_bytes(predicted)}"
    if share < NOTICED:
        return [f"{head}: as predicted, {share:.2%} apart"]
    lines = [f"{head}: {share:.1%} {'less' if measured < predicted else 'more'} than predicted"]
    for what, changes in (("module", diff.modules), ("phase", diff.phases), ("category", diff.categories)):
        parts = [
            f"{change.name or 'outside all'} {format_bytes(change.after_bytes - change.before_bytes)}" for change in changes[:3]
        ]
        if parts:
            lines.append(f"  by {what}, measured less predicted: {', '.join(parts)}")
    return lines
