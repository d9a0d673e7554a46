"""What one call of an operator costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Bound(StrEnum):
    """What keeps a kernel from being faster."""

    ARITHMETIC = "arithmetic"
    MEMORY = "memory"
    LINK = "link"
    HOST = "host"
    NOTHING = "nothing"
    """It launches no kernel."""


@dataclass(frozen=True)
class Cost:
    """Of one call, on one GPU."""

    operator: str
    seconds: float
    """On its stream; 0 where nothing is launched."""
    bound: Bound
    num_kernels: int = 1
    looks_first: bool = False
    """Before its kernels are issued, the host looks at numbers that are on the GPU, and waits for them."""
    flops: float = 0.0
    """Of products and attention, as they are usually counted: two for a multiplication and an addition."""
    moved_bytes: float = 0.0
    tokens: int = 0
    """How many places of an embedding were looked up."""
    flops_type: str = ""
    """The type that the products were in."""
    assumption: str = ""
    """What had to be assumed to price it."""


NOTHING: Final = Cost("", 0.0, Bound.NOTHING, num_kernels=0)
