"""The largest number that fits is found with few questions, and what is said of it was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from memfit.largest.search import Attempt, find_largest, most_in_all

ROOM = 80_000


def asking(needs: Callable[[int], int], asked: list[int], failing: int = 0) -> Callable[[Sequence[int]], list[Attempt]]:
    def attempt(number: int) -> Attempt:
        asked.append(number)
        if failing and number >= failing:
            return Attempt(number=number, error="no such size")
        return Attempt(number=number, needed=needs(number), fits=needs(number) <= ROOM)

    return lambda numbers: [attempt(number) for number in numbers]


SHAPES: dict[str, Callable[[int], int]] = {
    "a line": lambda number: 7_000 + 333 * number,
    "flat at first": lambda number: max(30_000, 5_000 + 90 * number),
    "a square": lambda number: 1_000 + 3 * number * number,
    "steps": lambda number: 2_048 * -(-(900 * number) // 2_048),
    "only the first": lambda number: 79_000 * number,
}


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("needs", SHAPES.values(), ids=SHAPES)
def test_it_is_the_largest_and_few_are_asked_for(needs: Callable[[int], int], lanes: int):
    asked: list[int] = []
    tried = find_largest(asking(needs, asked), ROOM, lanes=lanes)
    best = max(each.number for each in tried if each.fits)
    assert needs(best) <= ROOM < needs(best + 1)
    assert {best, best + 1} <= set(asked), "both sides are predicted, not concluded"
    assert len(asked) <= 14
    assert len(asked) == len(set(asked)) == len(tried)


def test_numbers_are_multiples_and_stay_below_the_ceiling():
    asked: list[int] = []
    tried = find_largest(asking(lambda number: number, asked), ROOM, multiple=128, ceiling=1000, lanes=2)
    assert max(each.number for each in tried if each.fits) == 896
    assert all(number % 128 == 0 and number <= 1000 for number in asked)


def test_nothing_fits():
    tried = find_largest(asking(lambda number: ROOM + number, []), ROOM)
    assert [(each.number, each.fits) for each in tried] == [(1, False)]


def test_memory_that_falls_again_is_no_endless_search():
    """A larger number fits though a smaller one does not: what is given still fits, and its neighbour does not."""
    needs = lambda number: ROOM + 1 if number in (8, 33) else 2_000 * number  # noqa: E731
    tried = {each.number: each.fits for each in find_largest(asking(needs, []), ROOM, lanes=2)}
    best = max(number for number, fits in tried.items() if fits)
    assert not tried[best + 1]


def test_a_number_that_cannot_be_predicted_ends_the_search():
    tried = {each.number: each for each in find_largest(asking(lambda number: number, [], failing=50), ROOM, lanes=2)}
    assert max(number for number, each in tried.items() if each.fits) == 49
    assert tried[50].error == "no such size"


def test_how_many_attempts_there_will_be_is_known_once_something_bounds_them():
    fits, does_not = Attempt(number=8, needed=1, fits=True), Attempt(number=24, needed=9)
    assert most_in_all([fits], None, 1) is None
    assert most_in_all([fits], 8, 1) == 1
    assert most_in_all([fits, does_not], None, 8) == 3
    assert most_in_all([fits, does_not], None, 1) == 2 + 4
