"""What differs between PyTorch's releases, as far as the allocator is concerned."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from memfit.errors import ConfigError
from memfit.torch_versions import TorchVersion

DEFAULT_TORCH_VERSION: Final = "2.11"
OLDEST: Final = (2, 6)
NEWEST: Final = (2, 15)
"""The releases whose allocator memfit knows. Anything newer is taken to work like the newest of them."""


class TieBreak(IntEnum):
    """Which of several free blocks of one size is taken first."""

    ADDRESS = 0
    """The lowest address."""
    BIRTH = 1
    """The block that came to be first; the front of a split block is a new one, its rest the old one."""
    SEGMENT = 2
    """The oldest segment, then the lowest address."""


def parse_version(text: str) -> tuple[int, int]:
    """``"2.11.0+cu130"`` is ``(2, 11)``. Raises ``ConfigError`` for what is no version, and for one that is too old."""
    version = TorchVersion.parse(text).release
    if version < OLDEST:
        raise ConfigError(f"memfit knows the allocator of torch {name(OLDEST)} and newer, not that of {text}")
    return version


def name(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def tie_break(version: tuple[int, int]) -> TieBreak:
    if version >= (2, 13):
        return TieBreak.SEGMENT
    return TieBreak.BIRTH if version == (2, 12) else TieBreak.ADDRESS
