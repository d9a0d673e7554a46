"""What is asked of a card, and what comes back: plain figures, so that a card can be made up in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memfit.calibrate.fitting import TimedCall


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What torch and the driver say of a card."""

    name: str
    capability: tuple[int, int]
    num_sms: int
    total_bytes: int
    """What nvidia-smi says it has."""
    usable_bytes: int
    """What the driver leaves to CUDA."""
    l2_cache_bytes: int
    clock_hertz: float
    """Of the multiprocessors, at most."""
    memory_bandwidth: float = 0.0
    """Bytes a second, by the memory's clock and width; 0 where nothing says them."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of driver, torch, CUDA and cuDNN."""


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Bytes that a process takes beside its tensors, and how the allocator takes them."""

    context_bytes: int
    """After a step of training with products, convolutions and attention, less what the allocator reserved."""
    first_context_bytes: int
    """When CUDA has been initialised."""
    cublas_workspace_bytes: int
    """Kept by the first product."""
    attention_kernel: str
    """Which one torch takes for bfloat16 without a mask: cudnn, flash, efficient or math."""
    rounding_bytes: int
    """What the smallest tensor takes."""
    small_segment_bytes: int
    large_segment_bytes: int
    """What the allocator asks of CUDA for small tensors, and for those above a mebibyte."""


@dataclass
class Measurements:
    """What was measured so far; a part that is missing was not come to."""

    card: CardFacts
    memory: MemoryFacts | None = None
    host: dict[str, float] = field(default_factory=dict)
    """Microseconds, by the names of ``host_cases.py``."""
    sustained: dict[str, float] = field(default_factory=dict)
    """Operations a second of products that follow one another for a second and a half, by type."""
    copies: dict[str, float] = field(default_factory=dict)
    """Bytes a second: pinned_to, pinned_from, pageable_to, pageable_from, peer."""
    calls: list[TimedCall] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """What could not be measured, and why."""


class CardMeter(Protocol):
    """A card that can be measured. Each call takes seconds; ``kernel_families`` says what ``kernels`` can be asked."""

    @property
    def kernel_families(self) -> Sequence[str]: ...

    def card(self) -> CardFacts: ...

    def memory(self) -> MemoryFacts: ...

    def host(self) -> dict[str, float]: ...

    def sustained(self) -> dict[str, float]: ...

    def copies(self) -> dict[str, float]: ...

    def kernels(self, family: str) -> tuple[list[TimedCall], list[str]]:
        """Calls with their seconds, and what went wrong."""
        ...
