"""Calls that differ in the sizes of their arguments alone: what one does follows from what others did.

::

    lengths that were run    137     208       311     402              667             1210
    their list of requests   A       A         A       B                B               B
    asked: 250               between two that have the same list: it is A, and its sizes follow from those of A's calls
    asked: 350               between two that differ: it is run
    asked: 1300              beyond what was run: it is run

Kernels look at alignment too, so a length is foretold only if one that is divisible by 2, 4, 8, ... as it is has been run, and did
as those around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, log
from typing import Any, Final

import numpy as np
import torch

from memfit.predict.run.calls import WrittenCall
from memfit.predict.run.readings import are_the_same
from memfit.predict.run.sizes import Fit, Unclear

WATCHED: Final = 2
"""Number of calls with arguments of the same sizes that must be alike."""
FIRST_CHECK: Final = 5
"""Of replaced calls, numbers 2**5 + 5, 2**6 + 6, ... are run again as a check, so that checks do not always meet
the same batch of a step."""
FEWEST_SAMPLES: Final = 4
MOST_SAMPLES: Final = 64
MOST_VARIABLES: Final = 3
ALIGNMENT: Final = 64
NEIGHBOURS: Final = 3

Sizes = tuple[int, ...]


class LengthFamily:
    """Calls whose arguments differ in sizes alone."""

    def __init__(self, kin: Sequence[LengthFamily] = ()) -> None:
        """``kin`` are families that differ in the modules' plain attributes alone."""
        self._samples: dict[tuple[Sizes, tuple[Any, ...]], _Sample] = {}
        """By sizes and by the values that were read."""
        self._kin = list(kin)
        self._fits: dict[Any, Fit] = {}
        self._num_told = 0
        self._expected: dict[Sizes, WrittenCall] = {}
        """What is run to see whether it is what was told."""
        self.num_wrong = 0
        """How many calls were run and were not what would have been written down."""

    def add(self, sizes: Sizes, call: WrittenCall) -> None:
        """A call that was run."""
        expected = self._expected.pop(sizes, None)
        if expected is not None and expected.outcomes == call.outcomes and not expected.is_like(call):
            self.num_wrong += 1
            self._samples.clear()
        if self._kin:
            self._take_over(sizes, call)
        known = self._samples.pop((sizes, call.outcomes), None)
        shape = next((sample.shape for sample in self._samples.values() if sample.call.shape == call.shape), object())
        self._samples[sizes, call.outcomes] = _Sample(call, shape, known)
        if len(self._samples) > MOST_SAMPLES:
            self._forget_one()
        self._fits.clear()

    def _take_over(self, sizes: Sizes, call: WrittenCall) -> None:
        """What is known of kin holds here too where the first call did what it says."""
        for other in self._kin:
            told = other.tell(sizes, [key for key in other._samples if key[1] == call.outcomes])
            if told is not None and told.is_like(call):
                self._samples, self._fits = other._samples, other._fits
                break
        self._kin.clear()

    def find(self, sizes: Sizes, inputs: Sequence[torch.Tensor]) -> WrittenCall | None:
        """What a call with arguments of these sizes does; ``None`` where only running it can tell, and now and then, to see."""
        if self.num_wrong:
            return None
        call = self.tell(sizes, self._with_the_same_readings(sizes, inputs))
        if call is None or not call.finds_its_storages():
            return None
        self._num_told += 1
        if _is_check(self._num_told):
            self._expected[sizes] = call
            return None
        return call

    def tell(self, sizes: Sizes, keys: Sequence[tuple[Sizes, tuple[Any, ...]]]) -> WrittenCall | None:
        """What these samples say of a call with arguments of such sizes."""
        for key in keys:
            if key[0] == sizes and self._samples[key].num_alike >= WATCHED:
                return self._samples[key].call
        if len(keys) < FEWEST_SAMPLES:
            return None
        samples = [(key[0], self._samples[key]) for key in keys]
        variables = _variables([*(known for known, _ in samples), sizes])
        if not variables or len(variables) > MOST_VARIABLES:
            return None
        asked = tuple(sizes[place] for place in variables)
        points = [(tuple(known[place] for place in variables), sample) for known, sample in samples]
        shape = _shape_at(asked, points)
        alike = [(point, sample.call) for point, sample in points if sample.shape is shape]
        if shape is None or len({point for point, _ in alike}) < FEWEST_SAMPLES:
            return None
        fit_key = (shape, variables)
        fit = self._fits.get(fit_key)
        if fit is None:
            numbers = np.array([call.sizes for _, call in alike])
            fit = self._fits[fit_key] = Fit([point for point, _ in alike], numbers, alike[0][1].are_exact)
        try:
            return _in_between(asked, alike, fit)
        except Unclear:
            return None

    def _with_the_same_readings(self, sizes: Sizes, inputs: Sequence[torch.Tensor]) -> list[tuple[Sizes, tuple[Any, ...]]]:
        hold: dict[tuple[Any, ...], bool] = {}
        for (known, outcomes), sample in self._samples.items():
            if outcomes not in hold:
                changed = {then: now for then, now in zip(known, sizes, strict=True) if then != now}
                hold[outcomes] = are_the_same(sample.call.readings, inputs, changed)
        return [key for key in self._samples if hold[key[1]]]

    def _forget_one(self) -> None:
        """The one whose neighbours are nearest: the range stays."""
        order = sorted(self._samples, key=lambda key: key[0])
        gaps = [(_distance(before[0], after[0]), each) for before, each, after in zip(order, order[1:], order[2:], strict=False)]
        del self._samples[min(gaps, key=lambda gap: gap[0])[1]]


class _Sample:
    """A call that was run, and how many like it in a row."""

    def __init__(self, call: WrittenCall, shape: object, before: _Sample | None) -> None:
        """``shape`` is one object for all samples of a family whose calls have equal shapes."""
        self.call, self.shape = call, shape
        self.num_alike: int = 1 + (before.num_alike if before is not None and before.call.is_like(call) else 0)


def _is_check(number: int) -> bool:
    power = number.bit_length() - 1
    return power >= FIRST_CHECK and number == 2**power + power


def _variables(rows: Sequence[Sizes]) -> tuple[int, ...]:
    """The columns that vary, without those that follow from others: equal to them, a fixed number more, or a multiple."""
    table = np.array(rows, dtype=object)
    chosen: list[int] = []
    for place in range(table.shape[1]):
        column = table[:, place]
        if (column == column[0]).all():
            continue
        if not any(_follows(column, table[:, other]) for other in chosen) and not any(
            (column * table[0, one] * table[0, other] == column[0] * table[:, one] * table[:, other]).all()
            for one in chosen
            for other in chosen
        ):
            chosen.append(place)
    return tuple(chosen)


def _follows(column: Any, other: Any) -> bool:
    return bool((column - other == column[0] - other[0]).all() or (column * other[0] == column[0] * other).all())


def _alignment(point: Sizes) -> Sizes:
    return tuple(gcd(size, ALIGNMENT) for size in point)


def _distance(one: Sizes, other: Sizes) -> float:
    return sum(abs(log(max(a, 1) / max(b, 1))) for a, b in zip(one, other, strict=True))


def _shape_at(asked: Sizes, points: Sequence[tuple[Sizes, _Sample]]) -> object | None:
    """The shape of a call at this point, if its neighbours tell."""
    alike = _alike_alignments(points)
    own = _alignment(asked)
    for candidates in (points, [(point, sample) for point, sample in points if _alignment(point) == own]):
        shape = _between_neighbours(asked, candidates)
        if shape is not None:
            seen = {_alignment(point) for point, sample in points if sample.shape is shape}
            if own in seen or any(own in group and group & seen for group in alike):
                return shape
    return None


def _alike_alignments(points: Sequence[tuple[Sizes, _Sample]]) -> list[set[Sizes]]:
    """Alignments that made no difference where both were seen."""
    by_shape: dict[object, set[Sizes]] = {}
    for point, sample in points:
        by_shape.setdefault(sample.shape, set()).add(_alignment(point))
    return list(by_shape.values())


def _between_neighbours(asked: Sizes, points: Sequence[tuple[Sizes, _Sample]]) -> object | None:
    if len(asked) == 1:
        below = max((point for point in points if point[0] <= asked), key=lambda point: point[0], default=None)
        above = min((point for point in points if point[0] >= asked), key=lambda point: point[0], default=None)
        if below is None or above is None or below[1].shape is not above[1].shape:
            return None
        return below[1].shape
    nearest = sorted(points, key=lambda point: _distance(point[0], asked))[:NEIGHBOURS]
    if len(nearest) < NEIGHBOURS or any(sample.shape is not nearest[0][1].shape for _, sample in nearest):
        return None
    shape = nearest[0][1].shape
    alike = np.array([point for point, sample in points if sample.shape is shape])
    inside = ((alike.min(axis=0) <= asked) & (alike.max(axis=0) >= asked)).all()
    return shape if inside else None


def _in_between(asked: Sizes, alike: Sequence[tuple[Sizes, WrittenCall]], fit: Fit) -> WrittenCall:
    """With numbers that the fit tells, and times between those of the two nearest."""
    sizes = fit.at(asked)
    (here, call), *others = sorted(alike, key=lambda item: _distance(item[0], asked))
    there, other = next(((point, each) for point, each in others if point != here), (here, call))
    whole, part = (sum(log(max(b, 1) / max(a, 1)) for a, b in zip(here, end, strict=True)) for end in (there, asked))
    share = min(max(part / whole, 0.0), 1.0) if whole else 0.0
    forward = call.forward.between(other.forward, share)
    if call.backward is None or other.backward is None:
        return call.resized(sizes, forward, None)
    return call.resized(sizes, forward, call.backward.window.between(other.backward.window, share))
