"""How many bytes a request becomes, and how many a new segment for it holds."""

from __future__ import annotations

import numpy as np

from memfit.allocator.settings import (
    LARGE_ROUNDING,
    LARGE_SEGMENT,
    MEDIUM_REQUEST,
    MIN_BLOCK,
    NUM_DIVISIONS,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    AllocatorSettings,
)
from memfit.ledger.schema import Array
from memfit.units import MIB


def round_size(size: int, settings: AllocatorSettings) -> int:
    """The bytes that a request takes: a multiple of 512, or with ``roundup_power2_divisions`` of a part of a power of two."""
    divisions = settings.roundup_power2_divisions[_interval(size)]
    if divisions > 1 and size > MIN_BLOCK * divisions:
        power = 1 << (size.bit_length() - 1)
        return _round_up(size, power // divisions)
    return max(MIN_BLOCK, _round_up(size, MIN_BLOCK))


def segment_size(rounded: int, settings: AllocatorSettings) -> int:
    """The bytes asked of the GPU when no cached block will do."""
    if rounded <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return settings.large_segment_bytes if rounded < MEDIUM_REQUEST else _round_up(rounded, LARGE_ROUNDING)


def largest_request(segment: int) -> int:
    """The largest request for which the GPU is asked for a new segment of ``segment`` bytes; small requests share a segment.

    Under ``large_segment_size_mb`` other than its default, what shares the large segments is not recognised.
    """
    if segment <= SMALL_SEGMENT:
        return SMALL_REQUEST
    return MEDIUM_REQUEST - MIN_BLOCK if segment == LARGE_SEGMENT else segment


def round_sizes(sizes: Array, settings: AllocatorSettings) -> tuple[Array, Array]:
    """``round_size`` and ``segment_size`` of many requests."""
    if max(settings.roundup_power2_divisions) > 1:  # of few different sizes
        distinct, where = np.unique(sizes, return_inverse=True)
        rounded = np.array([round_size(size, settings) for size in distinct.tolist()], dtype=np.int64)[where]
    else:
        rounded = np.maximum(MIN_BLOCK, _round_all_up(sizes.astype(np.int64), MIN_BLOCK))
    segments = np.where(rounded < MEDIUM_REQUEST, settings.large_segment_bytes, _round_all_up(rounded, LARGE_ROUNDING))
    segments[rounded <= SMALL_REQUEST] = SMALL_SEGMENT
    return rounded, segments


def _round_up(size: int, quantum: int) -> int:
    return -(-size // quantum) * quantum


def _round_all_up(sizes: Array, quantum: int) -> Array:
    rounded: Array = (sizes + (quantum - 1)) // quantum * quantum
    return rounded


def _interval(size: int) -> int:
    return min(max(size.bit_length() - MIB.bit_length(), 0), NUM_DIVISIONS - 1)
