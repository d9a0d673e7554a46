"""What an engine must know, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from memfit.allocator.settings import SMALL_SEGMENT, AllocatorSettings, TieBreak
from memfit.errors import ConfigError
from memfit.units import TIB

NO_LIMIT: Final = 2**62
"""More bytes than any run asks for; leaves room to add to it in 64 bits."""
_LARGEST_GPU: Final = 2**60
"""Memory beyond this counts as no limit."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """``AllocatorSettings`` on a GPU of a certain size."""

    capacity: int
    """What the GPU can give, in bytes."""
    limit: int
    """What the process may take of it: ``per_process_memory_fraction`` in bytes."""
    reject_at_limit: bool
    collect_above: int
    """Reserved bytes above which idle segments are given back before a new one is asked for."""
    max_split: int
    non_split_slack: int
    expandable: bool
    small_page: int
    large_page: int
    range_bytes: int
    """The address space that one expandable segment may grow into; a larger request is out of memory."""
    tie_break: TieBreak

    @classmethod
    def of(
        cls,
        settings: AllocatorSettings,
        capacity: int | None = None,
        total_memory: int | None = None,
        *,
        largest_request: int = 0,
    ) -> Rules:
        """The rules on a GPU that can give ``capacity`` bytes of its ``total_memory``; ``None`` stands for enough of both.

        Enough is at least what the GPU can give, and the ``largest_request`` of the run.
        """
        if (capacity is not None and capacity < 0) or (total_memory is not None and total_memory <= 0):
            raise ConfigError(f"a GPU cannot have {total_memory} bytes and give {capacity} of them")
        room = min(total_memory or max(TIB, capacity or 0, largest_request), _LARGEST_GPU)
        rules = cls(
            capacity=NO_LIMIT if capacity is None else min(capacity, NO_LIMIT),
            limit=NO_LIMIT,
            reject_at_limit=settings.throw_on_cudamalloc_oom,
            collect_above=NO_LIMIT,
            max_split=min(settings.max_split_bytes or NO_LIMIT, NO_LIMIT),
            non_split_slack=min(settings.max_non_split_rounding_bytes, NO_LIMIT),
            expandable=settings.expandable_segments,
            small_page=SMALL_SEGMENT,
            large_page=settings.large_segment_bytes,
            range_bytes=room + room // 8,
            tie_break=settings.tie_break,
        )
        if settings.per_process_memory_fraction is None:
            return rules
        if total_memory is None:
            raise ConfigError("per_process_memory_fraction is a share of a GPU's memory: name the GPU, or pass total_memory")
        return rules.limited(int(settings.per_process_memory_fraction * total_memory), settings)

    def limited(self, limit: int, settings: AllocatorSettings) -> Rules:
        """The same rules where the process may take ``limit`` bytes."""
        threshold, limit = settings.garbage_collection_threshold, min(limit, NO_LIMIT)
        return replace(self, limit=limit, collect_above=int(threshold * limit) if threshold else NO_LIMIT)
