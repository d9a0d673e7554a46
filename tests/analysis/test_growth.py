"""Memory that grows from step to step is noticed, with what it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.analysis import Growth, find_growth
from memfit.ledger import Ledger, LedgerBuilder, RunInfo
from memfit.units import MIB


def run(kept: list[int], temporary: int = 50 * MIB) -> Ledger:
    """Each step takes some memory for a while, and keeps so many bytes."""
    builder = LedgerBuilder(RunInfo(source="predicted"))
    device, op, leaking = builder.device("cuda:0"), builder.string("aten::mm"), builder.string("aten::cat")
    builder.alloc(100 * MIB, device, op)
    for size in kept:
        builder.step()
        builder.free(builder.alloc(temporary, device, op))
        if size:
            builder.alloc(size, device, leaking)
    return builder.build()


def test_a_leak_in_every_step():
    growth = find_growth(run([MIB] * 20), 0)
    assert growth is not None
    assert growth.bytes_a_step == MIB
    assert growth.places == (("aten::cat", "", 9 * MIB),)
    assert growth.full_at_step(peak=150 * MIB, capacity=250 * MIB) == 120
    assert growth.full_at_step(peak=150 * MIB, capacity=149 * MIB) is None


def test_a_leak_in_every_third_step():
    growth = find_growth(run([3 * MIB, 0, 0] * 30), 0)
    assert growth is not None
    assert growth.bytes_a_step == pytest.approx(MIB, rel=0.1)


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param([0] * 30, id="nothing"),
        pytest.param([MIB] * 5, id="few steps"),
        pytest.param([10 * MIB] * 3 + [0] * 27, id="the first steps"),
        pytest.param([0] * 20 + [10 * MIB] + [0] * 9, id="once"),
        pytest.param([8] * 30, id="a counter"),
    ],
)
def test_what_is_no_growth(kept: list[int]):
    assert find_growth(run(kept), 0) is None


@given(st.integers(1, 64).map(lambda size: size * 512), st.integers(10, 60))
def test_a_steady_leak_is_always_found(size: int, num_steps: int):
    growth = find_growth(run([size] * num_steps), 0)
    assert (growth is not None) is (size >= 1024)
    assert growth is None or growth.bytes_a_step == size


def test_it_can_be_written_down():
    growth = Growth(bytes_a_step=2.5, at_end=10, places=(("op", "module", 3),), num_steps=9)
    assert growth.to_json()["places"] == [{"operator": "op", "module": "module", "bytes": 3}]
