"""Strings, each kept once: what is packed refers to them by number."""

from __future__ import annotations

import numpy as np

from memfit.ledger.schema import Array
from memfit.units import format_bytes
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
