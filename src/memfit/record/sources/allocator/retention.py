"""What of a long run is kept in full: the first steps, those that set a new peak, and every so many-th. Of all, their levels."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.errors import ConfigError
from memfit.units import MIB

NEW_PEAK = 0.01
"""A peak is new if it is higher by this share than that of the steps that were kept: a leak makes a higher one in each step."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How much of a run is kept. Whatever the number of steps, a ledger stays within ``detail_bytes`` and ``level_rows``."""

    first: int = 3
    """So many first steps in full."""
    around_peaks: int = 1
    """A step that sets a new peak in full, and so many after it."""
    every: int = 1000
    """Every so many-th step in full."""
    detail_bytes: int = 48 * MIB
    """What is kept in full takes at most this much; beyond it, every second of the steps in the middle is dropped."""
    level_rows: int = 50_000
    """How full the device was is kept for every step in at most so many rows; beyond it, neighbours become one row."""

    def __post_init__(self) -> None:
        if self.first < 1 or self.every < 1 or self.around_peaks < 0:
            raise ConfigError("a retention keeps at least the first step (first=1), and every so many-th (every=1000)")
        if self.detail_bytes < MIB or self.level_rows < 100:
            raise ConfigError("a retention needs at least detail_bytes=1 MiB and level_rows=100")

    def wants(self, step: int) -> bool:
        """Is this step kept in full, whatever happens in it?"""
        return step < self.first or step % self.every == 0
