"""The course of a run: how high memory rose in each training step, evaluation and save, and with which batch.

::

    init │ step 0 │ step 1 │ evaluation 0 │ step 2 │ save 0 │ step 3 ...

A training step ends where an evaluation or a save begins. A ledger without activity has only steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from memfit.analysis.timeline import trace_total
from memfit.ledger import INIT, ActivityKind, Ledger, Phase
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A training step, an evaluation or a save."""

    kind: ActivityKind
    number: int
    """The number of the step, evaluation or save, from 0; ``INIT`` before the first step."""
    step: int
    """For a step its own number; for others that of the last step begun, ``INIT`` before the first."""
    peak_bytes: int
    """The peak, which is at least the memory in use at its beginning."""
    batch: str
    """The shape of its largest batch, ``8 x 1900``; empty if unknown."""

    @property
    def batch_elements(self) -> int:
        return prod(int(size) for size in self.batch.split(" x ") if size.isdigit()) if self.batch else 0


@dataclass(frozen=True, kw_only=True)
class Course:
    """All legs of a run, in the order in which they began."""

    legs: tuple[Leg, ...]

    @property
    def steps(self) -> tuple[Leg, ...]:
        """The training steps, without initialisation."""
        return tuple(leg for leg in self.legs if leg.kind is ActivityKind.TRAINING and leg.number != INIT)

    @property
    def highest_step(self) -> Leg | None:
        return _highest(self.steps)

    @property
    def largest_batch(self) -> Leg | None:
        """The step with the largest batch; the first of several."""
        known = [leg for leg in self.steps if leg.batch]
        return max(known, key=lambda leg: leg.batch_elements, default=None)

    @property
    def evaluations(self) -> tuple[Leg, ...]:
        return tuple(leg for leg in self.legs if leg.kind is ActivityKind.EVALUATION)

    @property
    def highest_evaluation(self) -> Leg | None:
        return _highest(self.evaluations)

    @property
    def saves(self) -> tuple[Leg, ...]:
        return tuple(leg for leg in self.legs if leg.kind is ActivityKind.SAVE)

    @property
    def highest_save(self) -> Leg | None:
        return _highest(self.saves)


def _highest(legs: Sequence[Leg]) -> Leg | None:
    """The leg with the highest peak; the first of several."""
    return max(legs, key=lambda leg: leg.peak_bytes, default=None)


def find_course(ledger: Ledger, device: int) -> Course:
    """The legs of a run, with their peaks on a device."""
    first, kind, number, batch = _begin(ledger)
    last = np.maximum(np.append(first[1:], len(ledger.events)) - 1, first)
    timeline = trace_total(ledger, device)
    peaks = timeline.at(timeline.highest_between(first, last)).tolist()
    says_training = bool((ledger.activity.kind == ActivityKind.TRAINING).any())
    found: dict[tuple[int, int], Leg] = {}
    step = INIT
    for what, which, shape, peak in zip(kind.tolist(), number.tolist(), batch.tolist(), peaks, strict=True):
        text, before = ledger.strings[shape] if shape >= 0 else "", found.get((what, which))
        if what == ActivityKind.TRAINING and (text or not says_training):
            step = which
        own = which if what == ActivityKind.TRAINING else step
        leg = Leg(kind=ActivityKind(what), number=which, step=own, peak_bytes=peak, batch=text)
        found[what, which] = leg if before is None else _joined(before, leg)
    # An evaluation after the last step begins a step that never comes.
    return Course(
        legs=tuple(
            leg
            for leg in found.values()
            if leg.kind is not ActivityKind.TRAINING or leg.batch or not says_training or leg.number == INIT
        )
    )


def _joined(first: Leg, second: Leg) -> Leg:
    larger = max(first, second, key=lambda leg: leg.batch_elements)
    peak = max(first.peak_bytes, second.peak_bytes)
    return Leg(kind=first.kind, number=first.number, step=first.step, peak_bytes=peak, batch=larger.batch)


def _begin(ledger: Ledger) -> tuple[Array, Array, Array, Array]:
    """The beginnings of legs in order: the event, kind, number and batch of each."""
    activity, training = ledger.activity, int(ActivityKind.TRAINING)
    if not ledger.info.covered.evaluations:  # calls without gradients in every step are a part of it
        is_training = activity.kind == ActivityKind.EVALUATION
        activity = type(activity)(activity.event, np.where(is_training, training, activity.kind), activity.number, activity.batch)
    steps = np.concatenate(([INIT], ledger.step_numbers))
    starts = np.concatenate(([-1], ledger.step_starts))
    step_of = steps[np.searchsorted(starts, activity.event, side="right") - 1]
    saving = _saving(ledger)
    rows = [
        (starts, np.full(len(starts), training), steps, np.full(len(starts), -1)),
        (activity.event, activity.kind, np.where(activity.kind == training, step_of, activity.number), activity.batch),
        (saving, np.full(len(saving), ActivityKind.SAVE), _number_of_save(ledger, saving), np.full(len(saving), -1)),
    ]
    event, kind, number, batch = (np.concatenate(columns).astype(np.int64) for columns in zip(*rows, strict=True))
    order = np.argsort(event, kind="stable")
    return event[order], kind[order], number[order], batch[order]


def _saving(ledger: Ledger) -> Array:
    """The events at which state dicts are made for a save: only saves follow before the next batch."""
    begun = ledger.scope_enter[(ledger.scopes.phase == Phase.CHECKPOINT) & (ledger.scopes.parent == -1)]
    following = np.searchsorted(ledger.activity.event, begun)
    kinds = np.append(ledger.activity.kind, ActivityKind.TRAINING)
    return np.sort(begun[kinds[following] == ActivityKind.SAVE])


def _number_of_save(ledger: Ledger, begun: Array) -> Array:
    """The number of the next save."""
    numbers: Array = np.append(ledger.activity.number, 0)[np.searchsorted(ledger.activity.event, begun)]
    return numbers
