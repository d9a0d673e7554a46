"""What sorts take; sizes from benchmarks/truth/kernel_memory.json."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memfit.phantom.kernels import sorting
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")


@pytest.mark.parametrize(
    ("count", "key_size", "size"),
    [
        (64, 8, 1),
        (2401, 8, 44543),
        (4096, 8, 71167),
        (8192, 8, 150015),
        (65536, 8, 1080831),
        (1_000_000, 8, 16240127),
        (10_000, 4, 131071),
        (1_000_000, 4, 12200191),
        (640_000, 2, 6521343),
        (32768, 1, 12799),
    ],
)
def test_cub_sorts_pairs(count, key_size, size):
    assert sorting.pair_sort_bytes(count, key_size) == size


@given(st.integers(1, 10**7), st.sampled_from([2, 4, 8]))
def test_more_to_sort_takes_more(count, key_size):
    assert sorting.pair_sort_bytes(count + 10_000, key_size) > sorting.pair_sort_bytes(count, key_size)


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((8, 4096), (32768,)),
        ((10000,), (80000, 131071)),
        ((64, 10000), (5120000, 5120000, 2560000, 7811583)),
        ((2000, 6000), (96000000, 144000255)),
        ((1,), ()),
    ],
)
def test_sorts_by_rows(shape, blocks):
    assert tuple(sorting.sort(H200, (torch.empty(shape, device="meta"), -1), None)) == blocks


@pytest.mark.parametrize(("shape", "digits"), [((1024, 32000), 1048576), ((4, 1000000), 401408), ((8, 100000), 401408)])
def test_rows_that_topk_shares(shape, digits):
    assert sorting.topk(H200, (torch.empty(shape, device="meta"), 10), None)[3] == digits


def test_short_rows_are_not_shared():
    assert sorting.topk(H200, (torch.empty(8192, 64, device="meta"), 6), None) == ()
