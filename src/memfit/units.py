"""Bytes in, bytes out: how memfit reads and writes amounts of memory.

Every figure inside memfit is an ``int`` of bytes. Text appears only at the edges, and always in binary units: ``1 GiB`` is 2**30
bytes, because that is what CUDA, ``nvidia-smi`` and PyTorch's own messages count in.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from memfit.errors import ConfigError

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TIB: Final = 2**40

UNIT_BYTES: Final = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_DECIMAL_BYTES: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_AMOUNT: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?i?B)?\s*")
_SHARE: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*%\s*")


def parse_bytes(text: str | int) -> int:
    """Reads ``"38GiB"``, ``"1.5 MiB"``, ``"80GB"`` (decimal) or a plain number of bytes."""
    if isinstance(text, int):
        return text
    match = _AMOUNT.fullmatch(text)
    units = UNIT_BYTES | _DECIMAL_BYTES
    if match is None or (match["unit"] or "B") not in units:
        raise ConfigError(f"cannot read {text!r} as an amount of memory: write it like 38GiB, 512MiB or 80GB")
    return round(float(match["number"]) * units[match["unit"] or "B"])


def format_bytes(size_bytes: int) -> str:
    """The amount in the largest unit that keeps it at or above one: ``format_bytes(1536) == "1.50 KiB"``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size_bytes) >= UNIT_BYTES[unit]:
            return f"{size_bytes / UNIT_BYTES[unit]:,.2f} {unit}"
    return f"{size_bytes} B"


def _number(other: float | str) -> float:
    return parse_bytes(other) if isinstance(other, str) else other


class Bytes(int):
    """An ``int`` of bytes that can be held against text, ``peak < "38GiB"``, and shows itself in units where a test fails."""

    def __lt__(self, other: float | str) -> bool:
        return int(self) < _number(other)

    def __le__(self, other: float | str) -> bool:
        return int(self) <= _number(other)

    def __gt__(self, other: float | str) -> bool:
        return int(self) > _number(other)

    def __ge__(self, other: float | str) -> bool:
        return int(self) >= _number(other)

    def __repr__(self) -> str:
        return f"{format_bytes(self)} ({int(self)} bytes)" if abs(int(self)) >= KIB else f"{int(self)} bytes"

    # Printed, formatted and written as JSON it is the number that it is.
    __str__ = int.__repr__


@dataclass(frozen=True)
class Allowance:
    """How much a figure may grow: a share of what it was, or a number of bytes."""

    text: str
    fraction: float = 0.0
    size_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> Allowance:
        """Reads ``"2%"`` or ``"500MiB"``."""
        share = _SHARE.fullmatch(text)
        if share is not None:
            return cls(text, fraction=float(share["number"]) / 100)
        try:
            return cls(text, size_bytes=parse_bytes(text))
        except ConfigError:
            raise ConfigError(f"cannot read {text!r} as how much memory may grow: write it like 2% or 500MiB") from None

    def of(self, size_bytes: int) -> int:
        """The bytes by which a figure of that size may grow."""
        return self.size_bytes + math.floor(self.fraction * size_bytes)
