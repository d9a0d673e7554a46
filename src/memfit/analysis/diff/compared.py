"""One figure of two runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Bytes in the one run and in the other."""

    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes

    @property
    def growth(self) -> float | None:
        """The change as a fraction of what was there before; ``None`` where nothing was."""
        return self.change_bytes / self.before_bytes if self.before_bytes else None
