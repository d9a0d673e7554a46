"""What of a run was seen: a verdict is about that, and about nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What was seen of a script that was predicted; all zero in other ledgers."""

    is_whole: bool = True
    """Did the script come to its own end?"""
    training_steps: int = 0
    steps_in_all: int = 0
    """Of a run that was stopped, where a trainer says it; 0 where that is not known."""
    batches_seen: int = 0
    """Of the epoch in which the run was stopped; 0 where it was not stopped in one."""
    batches_in_all: int = 0
    """Of that epoch."""
    kinds_of_batches: int = 0
    """Different shapes with which the model was called."""
    longest_batch: str = ""
    """The shape with the most elements of those: ``8 x 1900``."""
    forward_passes: int = 0
    evaluations: int = 0
    """Stretches of forward passes without gradients, between training steps or without any."""
    generations: int = 0
    saves: int = 0

    @property
    def is_known(self) -> bool:
        return bool(self.forward_passes or self.training_steps)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Coverage:
        """Reads what ``to_json`` gave; what is not of the right type is left out."""
        if not isinstance(data, dict):
            return cls()
        kept = {f.name: data[f.name] for f in fields(cls) if type(data.get(f.name)) is type(getattr(cls, f.name))}
        return cls(**kept)
