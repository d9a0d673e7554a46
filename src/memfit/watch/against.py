"""Compares a watched run with its prediction while it lasts, once the first steps are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from memfit.analysis.diff.runs import diff_ledgers
from memfit.ledger import Ledger
from memfit.ledger.cutting import cut
from memfit.views.words.watching import NOTICED, words_about_peak, words_about_prediction

if TYPE_CHECKING:
    from memfit.record.sources.allocator.alarms import StepFigures
    from memfit.record.tracker import Tracker

STEPS: Final = (1, 2)
"""After these steps the run is compared: optimizer state is there by then."""


class Against:
    """Called with the figures of each step: compares them with a prediction and reports the differences through ``say``."""

    def __init__(self, predicted: Path, tracker: Callable[[], Tracker | None], say: Callable[[str], None]) -> None:
        self._predicted = Ledger.load(predicted).check()
        self._path, self._tracker, self._say = predicted, tracker, say
        self._highest = 0

    def __call__(self, figures: StepFigures) -> None:
        tracker = self._tracker()
        if tracker is None or figures.step < STEPS[0]:
            return
        if figures.step in STEPS:
            for line in words_about_prediction(diff_ledgers(*same_steps(self._predicted, tracker.ledger_so_far())), figures.step):
                self._say(line)
        predicted = max(self._predicted.device_peak_bytes, default=0)
        if figures.step > STEPS[-1] and figures.peak > max(predicted * (1 + NOTICED), self._highest * (1 + NOTICED)):
            self._say(words_about_peak(figures.step, figures.peak, predicted))
        self._highest = max(self._highest, figures.peak)


def same_steps(predicted: Ledger, watched: Ledger) -> tuple[Ledger, Ledger]:
    """Both ledgers, cut after the last step that both have."""
    last = min(int(ledger.step_numbers.max(initial=-1)) for ledger in (predicted, watched))
    return _up_to(predicted, last), _up_to(watched, last)


def _up_to(ledger: Ledger, last: int) -> Ledger:
    following = np.flatnonzero(ledger.step_numbers > last)
    if not len(following):
        return ledger
    shortened = cut(ledger, int(ledger.step_starts[following[0]]))
    return replace(shortened, info=ledger.info)
