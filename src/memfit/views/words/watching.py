"""How a watched run compares with its prediction, in a few lines."""

from __future__ import annotations

from typing import Final

from memfit.analysis.diff.runs import Diff
from memfit.units import format_bytes

NOTICED: Final = 0.01
"""Differences below this share of the peak are not reported."""


def words_about_peak(step: int, measured: int, predicted: int) -> str:
    return f"step {step}: the peak is {format_bytes(measured)}, predicted {format_bytes(predicted)}"


def words_about_prediction(diff: Diff, step: int) -> list[str]:
    """The measured and the predicted peak, and what makes the difference; one line where they agree."""
    figure = diff.prediction_error if diff.compares_a_prediction else diff.headline
    measured, predicted = figure.before_bytes, figure.after_bytes
    share = abs(measured - predicted) / max(predicted, 1)
    head = words_about_peak(step, measured, predicted)
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
