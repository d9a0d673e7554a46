"""Numbers that follow from the sizes of a call's arguments: bytes of blocks, shapes of outputs.

::

    length   200   237   311   447          a number in each call      what it can be
    samples  1600  1896  2488  3576         8 x length                 one thing: it is foretold
             1664  1920  2560  3584         64 x length in blocks of 8   ...
             200   240   312   448          the next multiple of 8, or of 4: two that differ at 276, so 276 is run

Almost all sizes are products of a few dimensions, some rounded up; few are a product and something fixed, a polynomial, or a share
that is cut off. A number is foretold where every form that fits all samples says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd
from typing import Final

import numpy as np

from memfit.ledger.schema import Array

ROUNDINGS: Final = (2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_DENOMINATOR: Final = 16
NEARBY: Final = 3
"""Number of samples on each side of a point that decide if not all samples agree."""
_LIMIT: Final = 2**62


class Unclear(Exception):
    """The samples do not tell."""


def terms(point: Sequence[int]) -> list[int]:
    """What numbers may be proportional to, for one point: products of dimensions, plain first, then rounded up."""
    single = [_atoms(size) for size in point]
    found: list[int] = []
    if len(point) == 1:
        (atoms,) = single
        found += atoms
        found += [point[0] * atom for atom in atoms]
        found += [atom * atom for atom in atoms[1:]]
    else:
        product = int(np.prod(point, dtype=object))
        for place, atoms in enumerate(single):
            others = product // max(point[place], 1)
            found += atoms
            found += [point[place] * atom for atom in atoms]
            found += [others * atom for atom in atoms]
            found += [product * atom for atom in atoms]
        found += _atoms(product)
    return found


def _atoms(size: int) -> list[int]:
    return [size, size + 1, size - 1, *(-(-size // rounding) * rounding for rounding in ROUNDINGS)]


def plain_terms(point: Sequence[int]) -> list[int]:
    """The terms of polynomials, with 1."""
    found = [1]
    for size in point:
        found += (size, size * size)
    if len(point) > 1:
        product = int(np.prod(point, dtype=object))
        found += [product, *(product * size for size in point)]
    return found


class Fit:
    """What numbers are, as far as samples tell: one row of points, one column of numbers each."""

    def __init__(self, points: Sequence[tuple[int, ...]], numbers: Array, is_exact: Array, *, is_part: bool = False) -> None:
        """``numbers`` has a row for each point. Of the columns that are not exact, a guess will do."""
        self._points, self._is_part = points, is_part
        columns, self._inverse = np.unique(np.vstack([numbers, is_exact[None, :]]), axis=1, return_inverse=True)
        self._inverse = self._inverse.ravel()
        self._columns, self._is_exact = columns[:-1].astype(np.int64), columns[-1].astype(bool)
        self._terms = np.array([terms(point) for point in points], dtype=np.int64)
        self._plain = [plain_terms(point) for point in points]
        self._first: list[int] = self._columns[0].tolist()
        self._is_constant: list[bool] = (self._columns == self._columns[0]).all(axis=0).tolist()
        self._multiples: dict[int, list[int]] = {}
        self._lines: dict[int, list[tuple[int, int, int]]] = {}
        self._factors: dict[int, list[Fraction] | None] = {}
        self._shares: dict[int, list[tuple[int, Fraction, int]]] = {}

    def at(self, point: tuple[int, ...]) -> Array:
        """The numbers at a point. Raises ``Unclear``."""
        at_point = terms(point)
        values = [self._value(column, point, at_point) for column in range(self._columns.shape[1])]
        found: Array = np.array(values, dtype=np.int64)[self._inverse]
        return found

    def _value(self, column: int, point: tuple[int, ...], at_point: list[int]) -> int:
        if self._is_constant[column]:
            return self._first[column]
        fitting = self._proportional(column)
        if fitting:
            said = {self._scaled(column, term, at_point) for term in fitting}
            if len(said) > 1:
                raise Unclear
            return said.pop()
        if len({*self._points}) < 3:
            raise Unclear
        for form in (self._on_lines, self._on_polynomial, self._in_shares):
            said = form(column, point, at_point)
            if len(said) > 1:
                raise Unclear
            if said:
                return said.pop()
        if not self._is_exact[column]:
            return self._guess(column, point)
        return self._nearby(column, point)

    def _nearby(self, column: int, point: tuple[int, ...]) -> int:
        """What the samples around a point say, where all together say nothing."""
        if self._is_part or len(point) > 1:
            raise Unclear
        capped = self._capped(column, point)
        if capped is not None:
            return capped
        order = sorted(range(len(self._points)), key=lambda row: self._points[row])
        below = [row for row in order if self._points[row] <= point][-NEARBY:]
        above = [row for row in order if self._points[row] >= point][:NEARBY]
        if min(len(below), len(above)) < NEARBY:
            raise Unclear
        return self._part(sorted({*below, *above}), column).value_at(point)

    def _capped(self, column: int, point: tuple[int, ...]) -> int | None:
        """A size that grows up to a limit: a kernel has no more blocks than the GPU can run at once."""
        values = self._columns[:, column]
        at_limit = [row for row in range(len(values)) if values[row] == values.max()]
        below = [row for row in range(len(values)) if values[row] != values.max()]
        first, last = min(self._points[row] for row in at_limit), max(self._points[row] for row in below)
        if len(at_limit) < NEARBY or len(below) < NEARBY or last >= first:
            return None
        if point >= first:
            return int(values.max())
        if point > last:
            raise Unclear
        return self._part(below, column).value_at(point)

    def _part(self, rows: list[int], column: int) -> Fit:
        chosen = self._columns[rows, column : column + 1]
        return Fit([self._points[row] for row in rows], chosen, np.array([True]), is_part=True)

    def value_at(self, point: tuple[int, ...]) -> int:
        """Of the first column."""
        return int(self.at(point)[0])

    # -- forms: found once for a column, asked at many points ----------------------------------------------------------------------

    def _proportional(self, column: int) -> list[int]:
        """The terms that the column is proportional to."""
        if column not in self._multiples:
            values, rows = self._columns[:, column].astype(object), self._terms.astype(object)
            fits = (values[:, None] * rows[0][None, :] == values[0] * rows).all(axis=0) & (self._terms[0] > 0)
            self._multiples[column] = np.flatnonzero(fits).tolist()
        return self._multiples[column]

    def _scaled(self, column: int, term: int, at_point: list[int]) -> int:
        scaled, rest = divmod(self._first[column] * at_point[term], int(self._terms[0][term]))
        if rest:
            raise Unclear
        return scaled

    def _on_lines(self, column: int, point: tuple[int, ...], at_point: list[int]) -> set[int]:
        """Something fixed and something proportional."""
        if column not in self._lines:
            self._lines[column] = list(self._find_lines(column))
        said = set()
        for term, rise, run in self._lines[column]:
            value, rest = divmod(rise * (at_point[term] - int(self._terms[0][term])), run)
            if not rest:
                said.add(self._first[column] + value)
        return said

    def _find_lines(self, column: int) -> Iterator[tuple[int, int, int]]:
        """Terms, and by how much the column rises while the term rises by how much."""
        values = self._columns[:, column].astype(object)
        rises, runs = values[1:] - values[0], (self._terms[1:] - self._terms[0]).astype(object)
        for term in range(self._terms.shape[1]):
            run = runs[:, term]
            anchor = next((i for i in range(len(run)) if run[i]), None)
            if anchor is not None and (rises * run[anchor] == rises[anchor] * run).all():
                yield term, int(rises[anchor]), int(run[anchor])

    def _on_polynomial(self, column: int, point: tuple[int, ...], at_point: list[int]) -> set[int]:
        """Exact, and with more samples than factors."""
        if column not in self._factors:
            has_enough = len({*self._points}) > len(self._plain[0])
            rows = [[Fraction(value) for value in row] for row in self._plain]
            self._factors[column] = _solve(rows, self._columns[:, column].tolist()) if has_enough else None
        factors = self._factors[column]
        if factors is None:
            return set()
        value = sum((factor * term for factor, term in zip(factors, plain_terms(point), strict=True)), Fraction(0))
        return {int(value)} if value.denominator == 1 else set()

    def _in_shares(self, column: int, point: tuple[int, ...], at_point: list[int]) -> set[int]:
        """A share of a product, cut off to a whole number of units."""
        if column not in self._shares:
            self._shares[column] = list(self._find_shares(column))
        return {unit * (share.numerator * at_point[term] // share.denominator) for unit, share, term in self._shares[column]}

    def _find_shares(self, column: int) -> Iterator[tuple[int, Fraction, int]]:
        """Units, shares and the terms that they are shares of."""
        values = self._columns[:, column].tolist()
        whole = gcd(*values)
        if not whole or len({*self._points}) < 4:
            return
        for unit in (whole // part for part in (1, 2, 4, 8) if not whole % part):
            for term in range(self._terms.shape[1]):
                low, high = Fraction(0), Fraction(_LIMIT)
                for value, row in zip(values, self._terms[:, term].tolist(), strict=True):
                    if row <= 0:
                        break
                    low, high = max(low, Fraction(value // unit, row)), min(high, Fraction(value // unit + 1, row))
                else:
                    yield from ((unit, share, term) for share in _simple_shares(low, high))

    def _guess(self, column: int, point: tuple[int, ...]) -> int:
        rows, values = np.array(self._plain, dtype=np.float64), self._columns[:, column].astype(np.float64)
        factors, *_ = np.linalg.lstsq(rows, values, rcond=None)
        return max(0, round(float(np.array(plain_terms(point), dtype=np.float64) @ factors)))


def _simple_shares(low: Fraction, high: Fraction) -> Iterator[Fraction]:
    """Those of small denominators from ``low`` to below ``high``."""
    if low >= high:
        return
    for denominator in range(1, LARGEST_DENOMINATOR + 1):
        first = -(-low.numerator * denominator // low.denominator)
        share = Fraction(first, denominator)
        if share < high and share.denominator == denominator:
            yield share


def _solve(rows: list[list[Fraction]], values: Sequence[int]) -> list[Fraction] | None:
    """The factors with which terms add up to values, where all rows agree."""
    table = [[*row, Fraction(value)] for row, value in zip(rows, values, strict=True)]
    count = len(rows[0])
    pivots: list[int] = []
    for column in range(count):
        pivot = next((i for i in range(len(pivots), len(table)) if table[i][column]), None)
        if pivot is None:
            return None  # the samples do not tell the terms apart
        place = len(pivots)
        table[place], table[pivot] = table[pivot], table[place]
        scale = table[place][column]
        table[place] = [value / scale for value in table[place]]
        for other in range(len(table)):
            if other != place and table[other][column]:
                factor = table[other][column]
                table[other] = [a - factor * b for a, b in zip(table[other], table[place], strict=True)]
        pivots.append(column)
    if any(row[-1] for row in table[count:]):
        return None
    return [table[place][-1] for place in range(count)]
