"""How full devices were at the end of every step, in a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from memfit.ledger.schema import Array, Levels
from memfit.record.sources.allocator.alarms import StepFigures
from memfit.record.sources.allocator.history import AllocatorHistory, DeviceFigures

OnStep = Callable[[StepFigures], None]
_COLUMNS: Final = tuple(Levels.dtypes())
_INDEX: Final = {name: i for i, name in enumerate(_COLUMNS)}


class LevelLog:
    """Rows for every step and device. When there are too many, neighbours become one, with the higher peak and the later levels."""

    def __init__(self, most_rows: int | None = None) -> None:
        self._most_rows = most_rows
        self._written: list[Array] = []
        self._num_written = 0
        self._rows: list[int] = []
        self._steps_a_row = 1

    def add(self, **figures: int) -> None:
        self._rows += [figures[name] for name in _COLUMNS]

    @property
    def is_full(self) -> bool:
        """Is it time to put neighbours together?"""
        return self._most_rows is not None and self._num_written + len(self._rows) // len(_COLUMNS) > self._most_rows

    def take(self) -> Levels:
        """The rows that have come since this was last asked; after ``thin_out``, all of them."""
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

    def thin_out(self) -> None:
        """Puts neighbours of one device together, as many as leave half of the room free: rows are about equally many steps."""
        self.rewind()
        table = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        num_devices = len(np.unique(table[:, _INDEX["device"]]))
        num_steps = int(table[:, _INDEX["last_step"]].max()) + 2
        assert self._most_rows is not None
        while num_steps * num_devices / self._steps_a_row > self._most_rows / 2:
            self._steps_a_row *= 2
        self._rows = _put_together(table, self._steps_a_row).ravel().tolist()


class LevelReporter:
    """Notes how full each device is at the end of a step, and calls ``on_step`` with it."""

    def __init__(self, history: AllocatorHistory, log: LevelLog, on_step: Sequence[OnStep]) -> None:
        self._history, self._log, self._on_step = history, log, tuple(on_step)

    def note(
        self,
        step: int,
        time_ns: int,
        found: dict[int, DeviceFigures],
        largest_free: Callable[[int], int],
        *,
        has_events: bool,
    ) -> Iterator[StepFigures]:
        """Adds a row for each device that is in use, and gives its figures."""
        for device, figures in found.items():
            if not figures.reserved:
                continue  # another process's, or not used yet
            row = {
                "first_step": step,
                "last_step": step,
                "time_ns": time_ns,
                "has_events": int(has_events),
                "peak": figures.peak,
                "allocated": figures.allocated,
                "reserved": figures.reserved,
                "active": figures.active,
                "inactive_split": figures.inactive_split,
                "largest_free": largest_free(device),
            }
            self._log.add(device=device, **row)
            yield StepFigures(self._history.device_name(device), self._history.capacity(device), **row)

    def tell(self, figures: StepFigures) -> list[str]:
        """Calls all listeners. Removes one that raises, and returns its error."""
        failures = []
        for tell in self._on_step:
            try:
                tell(figures)
            except Exception as error:  # a logger's trouble is no reason to end the recording, nor the run
                self._on_step = tuple(other for other in self._on_step if other is not tell)
                failures.append(f"{tell!r} failed and is called no more: {error}")
        return failures


def _put_together(table: Array, steps_a_row: int) -> Array:
    """Merges the rows of one device that are about the same number of steps: the highest peak, and the levels of the last."""
    part = table[:, _INDEX["last_step"]] // steps_a_row
    order = np.lexsort((np.arange(len(table)), part, table[:, _INDEX["device"]]))
    table, part = table[order], part[order]
    is_first = np.ones(len(table), dtype=bool)
    is_first[1:] = (np.diff(part) != 0) | (np.diff(table[:, _INDEX["device"]]) != 0)
    starts = np.flatnonzero(is_first)
    merged = table[np.append(starts[1:], len(table)) - 1].copy()
    merged[:, _INDEX["first_step"]] = table[starts, _INDEX["first_step"]]
    merged[:, _INDEX["has_events"]] = np.minimum.reduceat(table[:, _INDEX["has_events"]], starts)
    merged[:, _INDEX["peak"]] = np.maximum.reduceat(table[:, _INDEX["peak"]], starts)
    ordered: Array = merged[np.argsort(merged[:, _INDEX["last_step"]], kind="stable")]
    return ordered


def _levels(rows: Array) -> Levels:
    return Levels.from_rows(rows.ravel().tolist())
