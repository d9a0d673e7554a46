"""How full devices were at the end of every step, in a bounded number of rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from memfit.ledger.schema import Array, Levels

_COLUMNS: Final = tuple(Levels.dtypes())
_INDEX: Final = {name: i for i, name in enumerate(_COLUMNS)}


class LevelLog:
    """Rows for every step and device. When there are too many, neighbours become one, with the higher peak and the later levels."""

    def __init__(self, most_rows: int | None = None) -> None:
        self._most_rows = most_rows
        self._written: list[Array] = []
        self._num_written = 0
        self._rows: list[int] = []

    def add(self, **figures: int) -> None:
        self._rows += [figures[name] for name in _COLUMNS]

    @property
    def is_full(self) -> bool:
        """Is it time to put neighbours together?"""
        return self._most_rows is not None and self._num_written + len(self._rows) // len(_COLUMNS) > self._most_rows

    def take(self) -> Levels:
        """The rows that have come since this was last asked; after ``halve``, all of them."""
        fresh = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        self._rows.clear()
        self._written.append(fresh)
        self._num_written += len(fresh)
        return _levels(fresh)

    def rewind(self) -> None:
        """From now on, ``take`` gives all of them once more."""
        written = np.concatenate(self._written) if self._written else np.empty((0, len(_COLUMNS)), dtype=np.int64)
        self._rows = written.ravel().tolist() + self._rows
        self._written, self._num_written = [], 0

    def halve(self) -> None:
        """Puts neighbours of one device together."""
        self.rewind()
        table = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        device = table[:, _INDEX["device"]]
        merged = np.concatenate([_put_together(table[device == number]) for number in np.unique(device)])
        self._rows = merged[np.argsort(merged[:, 0], kind="stable")].ravel().tolist()


def _put_together(rows: Array) -> Array:
    """Each two rows as one; the last one stays alone where their number is odd."""
    num_pairs = len(rows) // 2
    first, second = rows[0 : 2 * num_pairs : 2], rows[1 : 2 * num_pairs : 2]
    merged = second.copy()
    merged[:, _INDEX["first_step"]] = first[:, _INDEX["first_step"]]
    merged[:, _INDEX["has_events"]] &= first[:, _INDEX["has_events"]]
    merged[:, _INDEX["peak"]] = np.maximum(first[:, _INDEX["peak"]], second[:, _INDEX["peak"]])
    return np.concatenate((merged, rows[2 * num_pairs :]))


def _levels(rows: Array) -> Levels:
    return Levels.from_rows(rows.ravel().tolist())
