"""What of a long run is kept in full: the first steps, those that set a new peak, and every Nth. Of all steps, their levels."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.errors import ConfigError
from memfit.ledger import INIT
from memfit.record.sources.allocator.history import DeviceFigures
from memfit.units import MIB

NEW_PEAK = 0.01
"""A peak is new if it is higher by this share than that of the steps that were kept: a leak makes a higher one in each step."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How much of a run is kept. Whatever the number of steps, a ledger stays within ``detail_bytes`` and ``level_rows``."""

    first: int = 3
    """How many first steps are kept in full."""
    around_peaks: int = 1
    """How many steps after one that sets a new peak are kept in full, beside that one."""
    every: int = 1000
    """N, of which every Nth step is kept in full."""
    detail_bytes: int = 48 * MIB
    """What is kept in full takes at most this much; beyond it, every second of the steps in the middle is dropped."""
    level_rows: int = 50_000
    """How full the device was is kept for every step in at most this many rows; beyond it, neighbours become one row."""

    def __post_init__(self) -> None:
        if self.first < 1 or self.every < 1 or self.around_peaks < 0:
            raise ConfigError("a retention keeps at least the first step (first=1), and every Nth (every=1000)")
        if self.detail_bytes < MIB or self.level_rows < 100:
            raise ConfigError("a retention needs at least detail_bytes=1 MiB and level_rows=100")

    def wants(self, step: int) -> bool:
        """Is this step kept in full, whatever happens in it?"""
        return step < self.first or step % self.every == 0


class StepKeeper:
    """Decides at the end of each step whether it is kept in full; without a retention, all are."""

    def __init__(self, retention: Retention | None) -> None:
        self._retention = retention
        self._highest: dict[int, int] = {}
        """By device: the peak of the steps that were kept."""
        self._num_more = 0

    def keep_more(self, num_steps: int) -> None:
        """The next steps are kept too, whatever happens in them."""
        self._num_more = max(self._num_more, num_steps)

    def keeps(self, step: int, figures: dict[int, DeviceFigures]) -> bool:
        """Is this step, which is over, kept?"""
        if self._retention is None:
            return True
        is_new_peak = any(now.peak > self._highest.get(device, 0) * (1 + NEW_PEAK) for device, now in figures.items())
        if is_new_peak and step >= self._retention.first:
            self.keep_more(self._retention.around_peaks + 1)
        is_kept = step == INIT or self._retention.wants(step) or self._num_more > 0
        self._num_more = max(0, self._num_more - 1)
        if is_kept:
            self._highest |= {device: max(now.peak, self._highest.get(device, 0)) for device, now in figures.items()}
        return is_kept
