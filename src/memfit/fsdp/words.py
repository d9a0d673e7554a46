"""What the words share: each is torch's word of the same name, equal to it, and taken by torch in its place.

::

    Word       members and values of an enumeration of torch's      ShardingStrategy.FULL_SHARD == torch's, ShardingStrategy(1)
    Settings   fields and defaults of a dataclass of torch's         MixedPrecision(...) == torch's
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any, Self

from torch.distributed import fsdp as torch_fsdp

from memfit.errors import ConfigError


class Word(Enum):
    """A member equals torch's member of the same name, as a key of a dictionary too, and is found by its value or its text."""

    @property
    def text(self) -> str:
        """As people write it: ``full_shard``."""
        return self.name.lstrip("_").lower()

    def to_torch(self) -> Any:
        return getattr(torch_fsdp, type(self).__name__)[self.name]

    @classmethod
    def from_torch(cls, theirs: Any) -> Self:
        return cls[theirs.name]

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """``ShardingStrategy("full_shard")``, and torch's own member."""
        is_theirs = isinstance(value, getattr(torch_fsdp, cls.__name__))
        return next((word for word in cls if (word == value if is_theirs else word.text == value)), None)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, getattr(torch_fsdp, type(self).__name__)):
            return bool(self.name == other.name)
        return self is other

    def __hash__(self) -> int:
        return hash(self.name)  # so do torch's


class Settings:
    """Settings equal torch's of the same name if all fields are equal."""

    def to_torch(self) -> Any:
        theirs = getattr(torch_fsdp, type(self).__name__)
        return theirs(**{name: getattr(self, name) for name in _names(theirs)})

    @classmethod
    def from_torch(cls, theirs: Any) -> Self:
        if type(theirs).__name__ != cls.__name__:
            raise ConfigError(f"{cls.__name__}.from_torch takes torch's {cls.__name__}, not {type(theirs).__name__}")
        return cls(**{name: getattr(theirs, name) for name in _names(type(theirs))})

    def __eq__(self, other: object) -> bool:
        theirs = getattr(torch_fsdp, type(self).__name__)
        if type(other) is not type(self) and type(other) is not theirs:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(theirs))

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in _names(getattr(torch_fsdp, type(self).__name__))))


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]
