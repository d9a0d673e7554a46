import numpy as np
import pytest

from memfit.allocator import AllocatorSettings, parse_alloc_conf
from memfit.allocator.sizing import round_size, round_sizes, segment_size
from memfit.units import GIB, MIB

DEFAULT = AllocatorSettings()


@pytest.mark.parametrize(
    ("asked", "rounded", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
        (GIB + 1, GIB + 512, GIB + 2 * MIB),
    ],
)
def test_sizes_and_their_segments(asked: int, rounded: int, segment: int):
    assert round_size(asked, DEFAULT) == rounded
    assert segment_size(rounded, DEFAULT) == segment


@pytest.mark.parametrize(
    ("asked", "rounded"),
    [(1200, 1536), (2048, 2048), (2049, 2560), (5 * MIB, 5 * MIB), (5 * MIB + 1, 6 * MIB), (9 * MIB, 10 * MIB), (8 * MIB, 8 * MIB)],
)
def test_powers_of_two_divided_by_four(asked: int, rounded: int):
    assert round_size(asked, parse_alloc_conf("roundup_power2_divisions:4")) == rounded


def test_divisions_of_one_interval_only():
    settings = parse_alloc_conf("roundup_power2_divisions:[64:2,128:0]")
    assert round_size(65 * MIB, settings) == 96 * MIB
    assert round_size(130 * MIB, settings) == 130 * MIB
    assert round_size(5 * MIB + 1, settings) == 6 * MIB


def test_larger_shared_segments():
    assert segment_size(3 * MIB, parse_alloc_conf("large_segment_size_mb:64")) == 64 * MIB


def test_many_sizes_at_once():
    sizes = np.array([1, 3 * MIB, 1, 11 * MIB])
    rounded, segments = round_sizes(sizes, DEFAULT)
    assert rounded.tolist() == [512, 3 * MIB, 512, 11 * MIB]
    assert segments.tolist() == [2 * MIB, 20 * MIB, 2 * MIB, 12 * MIB]
