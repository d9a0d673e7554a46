"""Where levels go: exact orders by hand, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.plan.checkpointing.placements import Placement

counts_of_levels = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Placement.FRONT, [0, 0, 0, 0, 1, 1]),
        (Placement.SPREAD, [0, 1, 0, 0, 1, 0]),
        (Placement.SPREAD_BACK, [0, 1, 0, 0, 1, 0]),
        (Placement.BACK, [1, 1, 0, 0, 0, 0]),
    ],
)
def test_four_of_six_units_compute_again(placement: Placement, expected: list[int]) -> None:
    assert placement.levels_of_units((4, 2)) == expected


def test_every_second_unit_is_among_the_placements() -> None:
    assert Placement.SPREAD.levels_of_units((3, 3)) == [0, 1, 0, 1, 0, 1]
    assert Placement.SPREAD_BACK.levels_of_units((3, 3)) == [1, 0, 1, 0, 1, 0]


@given(counts=counts_of_levels, placement=st.sampled_from(Placement))
def test_every_level_gets_as_many_units_as_it_should(counts: list[int], placement: Placement) -> None:
    places = placement.levels_of_units(counts)
    assert [places.count(level) for level in range(len(counts))] == counts


@given(counts=counts_of_levels)
def test_spread_levels_are_nowhere_crowded(counts: list[int]) -> None:
    """Of the first n units, each level has its share, give or take one for each level."""
    places = Placement.SPREAD.levels_of_units(counts)
    for number in range(1, len(places) + 1):
        for level, count in enumerate(counts):
            assert abs(places[:number].count(level) - number * count / len(places)) <= len(counts)
