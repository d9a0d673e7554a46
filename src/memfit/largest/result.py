"""What a search for the largest number found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memfit.drawing import Drawn
from memfit.largest.search import Attempt


@dataclass(frozen=True, kw_only=True)
class LargestFit(Drawn):
    """The largest batch, sequence or other number that fits, and all that was tried."""

    axis: str
    """What was varied: ``batch``, ``seq``, or as the user calls it."""
    asked: Mapping[str, Any]
    """What was fixed, by name: ``model``, ``gpu``, ``world_size``, ..."""
    capacity: int
    """Bytes that the allocator can get."""
    room: int
    """The same without the margin."""
    multiple: int
    """Numbers are multiples of it."""
    ceiling: int | None = None
    """No larger number was looked at; ``None`` if there is no such limit."""
    is_bounded: bool = False
    """True if what is above ``ceiling`` cannot fit; otherwise it was not asked about."""
    tried: tuple[Attempt, ...]
    """In the order in which they were predicted."""
    assumptions: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"LargestFit({self.axis} {self.value})"

    @property
    def value(self) -> int:
        """The largest number that fits; 0 if none does."""
        return self.best.number if self.best is not None else 0

    @property
    def best(self) -> Attempt | None:
        """The attempt with that number; ``None`` if none fits."""
        return max((each for each in self.tried if each.fits), key=lambda each: each.number, default=None)

    @property
    def first_that_does_not_fit(self) -> Attempt | None:
        """The next number; ``None`` if it is above the ceiling."""
        above = (each for each in self.tried if not each.fits and each.number > self.value)
        return min(above, key=lambda each: each.number, default=None)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "axis": self.axis,
            "largest": self.value or None,
            "asked": {name: [*value] if isinstance(value, tuple) else value for name, value in self.asked.items()},
            "capacity": self.capacity,
            "room": self.room,
            "multiple": self.multiple,
            "ceiling": self.ceiling,
            "above_ceiling_cannot_fit": self.is_bounded,
            "tried": [
                {
                    "number": each.number,
                    "fits": each.fits,
                    "smallest_fit": each.needed or None,
                    "step_seconds": each.step_seconds or None,
                    "error": each.error or None,
                }
                for each in self.tried
            ],
            "assumptions": [*self.assumptions],
        }
