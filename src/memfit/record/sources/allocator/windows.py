"""The windows that a ledger is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from memfit.allocator import AllocatorSettings
from memfit.ledger import LedgerBuilder, Phase, RunInfo
from memfit.ledger.journal import Journal
from memfit.record.sources.allocator.joining import Clock, Joiner, Window
from memfit.record.sources.allocator.levels import LevelLog
from memfit.record.sources.allocator.retention import Retention

FLUSH_NS: Final = 500_000_000
"""How often the journal is brought up to date, between steps."""


class ModuleRows:
    """Names are given out while the run goes on, and written to a ledger later, or to several."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int, str]] = []

    def module(self, path: str, kind: str, parent: int = -1, written: str = "") -> int:
        self.rows.append((path, kind, parent, written))
        return len(self.rows) - 1

    def path(self, module: int) -> str:
        return self.rows[module][0] if module >= 0 else ""

    def kind_and_path(self, module: int) -> tuple[str, str]:
        """What a module is called in every recording of its model."""
        path, kind, *_ = self.rows[module]
        return kind, path


class WindowLedger:
    """Writes windows to a ledger.

    With a retention, windows are kept. When they take too much, some are dropped and the ledger is written again from those that
    remain: ``builder`` and ``joiner`` are others then.
    """

    builder: LedgerBuilder
    joiner: Joiner

    def __init__(
        self,
        info: RunInfo,
        journal: Journal | None,
        start_ns: int,
        settings: AllocatorSettings,
        device_name: Callable[[int], str],
        retention: Retention | None,
    ) -> None:
        self._start_ns, self._settings, self._device_name, self._retention = start_ns, settings, device_name, retention
        self.modules = ModuleRows()
        self.levels = LevelLog(retention.level_rows if retention is not None else None)
        self.ddp_modules: set[int] = set()
        self._kept: list[tuple[Window, bool]] = []
        """With a retention: each window with whether it follows the one before it."""
        self._waiting: list[tuple[Window, bool]] = []
        """Windows that are not in the ledger yet."""
        self.last_step = self.num_steps_on_disk = 0
        """The last step that a level was noted for, and the last one that the journal has."""
        self._flushed_ns = 0
        self._begin(info, journal)

    def add(self, window: Window, *, follows: bool) -> None:
        """Keeps a window for the next ``write``. ``follows``: it begins where the one before ended."""
        self._waiting.append((window, follows))

    def write(self) -> None:
        """Writes what is waiting."""
        while self._waiting:
            window, follows = self._waiting.pop(0)
            self._write(window, follows=follows)
            if self._retention is not None:
                self._kept.append((window, follows))
        if self._retention is not None and (self._is_too_much(self._retention) or self.levels.is_full):
            self._thin_out(self._retention)
        if self.builder.has_journal:
            self.flush()

    def write_levels(self) -> None:
        rows = self.levels.take()
        if len(rows):
            numbers = {device: self.builder.device(self._device_name(device)) for device in np.unique(rows.device).tolist()}
            self.builder.level(replace(rows, device=np.array([numbers[device] for device in rows.device.tolist()], dtype=np.int32)))

    def flush(self) -> None:
        """Brings the journal up to date."""
        self.write_levels()
        self.builder.flush()
        self._flushed_ns = time.time_ns()
        self.num_steps_on_disk = self.last_step

    @property
    def is_flush_due(self) -> bool:
        return self.builder.has_journal and time.time_ns() - self._flushed_ns > FLUSH_NS

    def note(self, *notes: str) -> None:
        """Adds to the ledger's notes, each once."""
        info = self.builder.info
        self.builder.info = replace(info, notes=tuple(dict.fromkeys((*info.notes, *notes))))

    def quiet_modules(self) -> set[int]:
        """The modules that were called and inside of which nothing was allocated."""
        ledger = self.builder.build()
        called = np.unique(ledger.scopes.module[ledger.scopes.phase == Phase.FORWARD]).tolist()
        busy = {*np.unique(ledger.block_module).tolist(), *(parent for _, _, parent, _ in self.modules.rows)}
        return {module for module in called if module not in busy}

    def _begin(self, info: RunInfo, journal: Journal | None) -> None:
        clock = Clock(self._start_ns)
        self.builder = LedgerBuilder(info, journal, clock)
        self.joiner = Joiner(self.builder, clock, self._settings, self._device_name, self.modules.kind_and_path)
        self._num_modules_written = 0

    def _write(self, window: Window, *, follows: bool) -> None:
        for row in self.modules.rows[self._num_modules_written :]:
            self.builder.module(*row)
        self._num_modules_written = len(self.modules.rows)
        self.joiner.ddp_modules |= self.ddp_modules
        self.joiner.add(window, follows=follows)

    def _is_too_much(self, retention: Retention) -> bool:
        return len(self._kept) > 4 and sum(window.num_bytes for window, _ in self._kept) > retention.detail_bytes

    def _thin_out(self, retention: Retention) -> None:
        """Drops every second of the windows in the middle, and writes the ledger again from the others."""
        if self._is_too_much(retention):
            highest = max(range(len(self._kept)), key=lambda i: self._kept[i][0].peak_bytes)
            middle = [i for i in range(1 + retention.first, len(self._kept) - 2) if i != highest]
            dropped = set(middle[::2]) or set(range(1, len(self._kept) - 2))
            self._kept = [
                (window, follows and i - 1 not in dropped) for i, (window, follows) in enumerate(self._kept) if i not in dropped
            ]
        if self.levels.is_full:
            self.levels.thin_out()
        journal = self.builder.give_away_journal()
        unknown = self.joiner.num_unknown_frees
        self._begin(self.builder.info, None)
        for window, follows in self._kept:
            self._write(window, follows=follows)
        self.joiner.num_unknown_frees = unknown
        self.levels.rewind()
        self.write_levels()
        if journal is not None:
            self.builder.take_over(journal)
