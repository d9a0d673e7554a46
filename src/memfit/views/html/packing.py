"""What the script of the page is given: strings, each kept once and referred to by number, and positions on an axis of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memfit.ledger.schema import Array
from memfit.units import UNIT_BYTES, format_bytes
from memfit.views.escaping import printable


class Texts:
    """All strings of a page, shared by its runs."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of ``text``, which is made safe to show."""
        return self._numbers.setdefault(printable(text), len(self._numbers))

    def sizes(self, column: Array) -> list[int]:
        """The numbers of amounts of memory, as people write them."""
        amounts, which = np.unique(column, return_inverse=True)
        numbers = np.array([self.number(format_bytes(amount)) for amount in amounts.tolist()], dtype=np.int64)
        return numbers[which].tolist() if len(numbers) else []

    def all(self) -> list[str]:
        return list(self._numbers)


HEIGHT: Final = 20_000
"""Of a drawing, in its own units: finer than any screen."""
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_MAX_TICKS: Final = 8


@dataclass(frozen=True)
class Scale:
    """An axis from nothing to ``top_bytes``."""

    top_bytes: int
    ticks: tuple[tuple[int, str], ...]
    """Positions and what to write there."""

    @classmethod
    def up_to(cls, size_bytes: int) -> Scale:
        """An axis with room for ``size_bytes``, and a round number of a unit between its ticks."""
        top = max(size_bytes + size_bytes // 25, 1)
        step, unit = next(
            (
                (step * size, (step, unit))
                for unit, size in UNIT_BYTES.items()
                for step in _STEPS
                if top / (step * size) < _MAX_TICKS
            ),
            (top, (1, "")),
        )
        marks = range(top // step + 1)
        return cls(top, tuple((place(mark * step, top), f"{mark * unit[0]} {unit[1]}" if mark else "0") for mark in marks))

    def places(self, column: Array) -> Array:
        """The positions of amounts of memory."""
        return np.rint(column * (HEIGHT / self.top_bytes)).astype(np.int64)


def place(size_bytes: int, top_bytes: int) -> int:
    return round(HEIGHT * size_bytes / top_bytes)


def percent(part: int, whole: int) -> str:
    """``12.5%``, for a width."""
    return f"{100 * part / max(whole, 1):.3f}%"
