"""Collectives against the links' rates, and against what others have measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import ConfigError
from memfit.hardware import GIGA, find_gpu
from memfit.timing import collectives
from memfit.timing.links import FREE, parse_interconnect, usual_interconnect

H100 = parse_interconnect("8xH100-NVLink+400G")
SIZES = st.integers(1, 2**36)
RANKS = st.sampled_from((2, 4, 8, 16, 64, 512))
KINDS = {
    "all_gather": (collectives.all_gather_seconds, 1),
    "reduce_scatter": (collectives.reduce_scatter_seconds, 1),
    "all_reduce": (collectives.all_reduce_seconds, 2),
}


@given(SIZES, RANKS, st.sampled_from(sorted(KINDS)), st.booleans())
def test_no_collective_is_faster_than_its_links(size: int, ranks: int, kind: str, adjacent: bool) -> None:
    seconds, passes = KINDS[kind]
    sent = passes * size * (ranks - 1) / ranks
    assert seconds(size, ranks, H100, adjacent) >= collectives.least_seconds(sent, H100)


@given(SIZES, RANKS, st.sampled_from(sorted(KINDS)))
def test_more_bytes_and_more_nodes_take_longer(size: int, ranks: int, kind: str) -> None:
    seconds, _ = KINDS[kind]
    assert seconds(2 * size, ranks, H100) >= seconds(size, ranks, H100)
    if ranks >= 8:
        assert seconds(size, 2 * ranks, H100) >= seconds(size, ranks, H100)


def bus_bandwidth(seconds: float, size: float, ranks: int, passes: int) -> float:
    return passes * size * (ranks - 1) / ranks / seconds / GIGA


def test_large_messages_reach_what_nccl_tests_have_measured() -> None:
    size = 8 * 2**30
    assert bus_bandwidth(collectives.all_reduce_seconds(size, 8, H100), size, 8, 2) == pytest.approx(478, rel=0.01)
    assert bus_bandwidth(collectives.all_gather_seconds(size, 8, H100), size, 8, 1) == pytest.approx(369, rel=0.01)
    assert bus_bandwidth(collectives.all_reduce_seconds(size, 16, H100), size, 16, 2) == pytest.approx(370, rel=0.05)


def test_small_messages_have_a_floor_of_microseconds() -> None:
    assert 5e-6 < collectives.all_reduce_seconds(8, 8, H100) < 30e-6
    assert 20e-6 < collectives.all_reduce_seconds(8, 16, H100) < 60e-6, "46 microseconds: github.com/NVIDIA/nccl issue 1244"


def test_one_rank_and_no_links_take_no_time() -> None:
    for seconds, _ in KINDS.values():
        assert seconds(2**20, 1, H100) == 0.0
        assert seconds(2**20, 64, FREE) == 0.0


def test_names_of_interconnects() -> None:
    assert parse_interconnect("8xH100-NVLink+400G").network_bandwidth == pytest.approx(47 * GIGA)
    assert parse_interconnect("4xL40S-PCIe").gpus_per_node == 4
    assert parse_interconnect("none").takes_no_time
    assert usual_interconnect(find_gpu("H200")).name == "8xH200-NVLink+400G"
    assert usual_interconnect(find_gpu("L4")).name == "8xL4-PCIe+400G"


@pytest.mark.parametrize("name", ["H100", "8xH100", "8xL40S-NVLink", "0xH100-NVLink", "8xH100-NVLink+0G", "8xZ9-NVLink"])
def test_what_is_no_interconnect_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        parse_interconnect(name)
