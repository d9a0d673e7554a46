"""Real step times correct a card's rates and its host's pace: runs that were watched or tracked, beside predictions of them.

::

    a step whose streams were to be busy most of the time   corrects kernels: all times, bandwidths and rates by one factor
    a step that was to wait for its host                    corrects the host's pace

One factor each, the median over runs: a step's time says how much, not which operator.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.analysis.lanes import find_window
from memfit.calibrate.host import scaled_host
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.timing.leaves import LeafKind, find_leaves, scaled

BUSY_SHARE: Final = 0.9
"""From this share of a step on, it is bound by the card."""
LEAST_STEPS: Final = 2
"""Between the beginnings of so many steps, after the first, which warms up."""


@dataclass(frozen=True, kw_only=True)
class LearnedRun:
    """A run and its prediction."""

    measured_seconds: float
    predicted_seconds: float
    busy_share: float
    """Of the predicted step, when the card was to be at work."""

    @property
    def is_bound_by_card(self) -> bool:
        return self.busy_share >= BUSY_SHARE

    @property
    def factor(self) -> float:
        """How many times as long as predicted a step took."""
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True)
class Learned:
    runs: tuple[LearnedRun, ...]
    kernels: float | None
    """By how much kernels take longer; ``None`` where no run was bound by the card."""
    host: float | None
    tables: dict[str, Any]
    """Of a file of rates, corrected."""


def learn(pairs: Sequence[tuple[Ledger, Ledger]], tables: Mapping[str, Any]) -> Learned:
    """Corrects tables by pairs of a real run and its prediction."""
    runs = tuple(compare_steps(real, predicted) for real, predicted in pairs)
    kernels = [run.factor for run in runs if run.is_bound_by_card]
    host = [run.factor for run in runs if not run.is_bound_by_card]
    by_kernels, by_host = (statistics.median(factors) if factors else None for factors in (kernels, host))
    found = dict(tables)
    if by_kernels is not None:
        slower = {leaf: by_kernels if leaf.kind is LeafKind.TIME else 1 / by_kernels for leaf in find_leaves(tables)}
        found = scaled(found, slower)
        found["products"] = {**found["products"], "sustained_share": found["products"]["sustained_share"] / by_kernels}
    if by_host is not None:
        found["host"] = scaled_host(found["host"], by_host)
    return Learned(runs, by_kernels, by_host, found)


def compare_steps(real: Ledger, predicted: Ledger) -> LearnedRun:
    """Raises ``ConfigError`` where one of them does not say how long its steps took."""
    window = find_window(predicted)
    if window is None:
        raise ConfigError("the prediction does not say what its last step did when: predict it with this memfit, with --out")
    length = window.end_ns - window.begin_ns
    on_card = predicted.work.stream >= 0
    busy = float(predicted.work.busy_ns[on_card].sum())
    return LearnedRun(
        measured_seconds=real_step_seconds(real),
        predicted_seconds=length * 1e-9,
        busy_share=min(1.0, busy / length),
    )


def real_step_seconds(ledger: Ledger) -> float:
    """The median of what its steps took, without the first."""
    starts = ledger.events.time_ns[ledger.step_starts] if ledger.info.has_clock else np.zeros(0)
    if len(starts) <= LEAST_STEPS:
        raise ConfigError("the run has too few steps whose times are known: watch or track at least four")
    return float(np.median(np.diff(starts[1:]))) * 1e-9
