"""An out-of-memory error, as the error itself and the device told it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Self

_LIMIT: Final = 2**60
"""Larger than any device's bytes or any run's nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The out-of-memory error that ended a run; false where none did. ``None`` stands for what is not known."""

    message: str = ""
    """What the error said; empty where there was none."""
    time_ns: int = 0
    """When it was raised, on the ledger's clock: what comes later happened on the way out."""
    device: str = ""
    """The device that ran out, as torch writes it; empty if it is not known."""
    op: str = ""
    """The operator that asked for memory; empty if it is not known."""
    needed_bytes: int | None = None
    """What the allocator asked of the device: the size of a new segment, to the digits that the message has."""
    free_bytes: int | None = None
    """What the device had left, for whatever process."""
    total_bytes: int | None = None
    """What the device has."""
    limit_bytes: int | None = None
    """What the process may take of it, if there is a limit: ``set_per_process_memory_fraction``."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None

    def __bool__(self) -> bool:
        return bool(self.message)

    @property
    def capacity(self) -> int | None:
        """What the allocator could get in all; ``None`` if it is not known."""
        if self.reserved_bytes is None or self.free_bytes is None:
            return self.limit_bytes
        room = self.reserved_bytes + self.free_bytes
        return room if self.limit_bytes is None else min(room, self.limit_bytes)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """From what ``dataclasses.asdict`` made of it; ``TypeError`` or ``ValueError`` where it has something else in it."""
        kept = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        for name, value in kept.items():
            usual = getattr(cls, name)
            if type(value) is not type(usual) and not (usual is None and type(value) is int):
                raise TypeError(f"the run's failure has a {name} of the wrong type")
            if isinstance(value, int) and not 0 <= value < _LIMIT:
                raise ValueError(f"the run's failure has the {name} {value}, which is not possible")
        return cls(**kept)
