"""What can be done with a unit: every level is the best of its size, held against all that there are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.plan.checkpointing.levels import Level, levels_of
from memfit.plan.checkpointing.recorded import RecordedCall, RecordedUnit
from memfit.plan.checkpointing.solver import Kind, solve
from memfit.plan.policy import Action


def call(operator: str, seconds: float, size: int, number: int = 0, **rest: Any) -> RecordedCall:
    return RecordedCall(operator=operator, call=number, seconds=seconds, size_bytes=size, **rest)


def unit(*calls: RecordedCall, saved: int = 1000, **rest: Any) -> RecordedUnit:
    return RecordedUnit(name="layers.0", kind="Block", calls=calls, saved_bytes=saved, **rest)


def kept(level: Level) -> set[tuple[str, int]]:
    return {(choice.operator, choice.call) for choice in level.choices}


items = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(items)
def test_no_set_of_operators_beats_a_level(items: list[tuple[int, int]]):
    calls = [call(f"op{number}", float(seconds), size) for number, (seconds, size) in enumerate(items)]
    levels = levels_of(unit(*calls))[:-1]
    for chosen in itertools.product((False, True), repeat=len(items)):
        size = sum(item[1] for item, is_kept in zip(items, chosen, strict=True) if is_kept)
        again = sum(item[0] for item, is_kept in zip(items, chosen, strict=True) if not is_kept)
        assert min(level.seconds for level in levels if level.size_bytes <= size) <= again + 1e-9


def test_what_runs_after_the_last_needed_tensor_costs_nothing_and_is_never_kept():
    levels = levels_of(unit(call("mm", 1.0, 10), call("last", 5.0, 10, is_run_again=False)))
    assert levels[0].seconds == 1.0
    assert all("last" not in choice.operator for level in levels for choice in level.choices)


def test_random_operators_are_one_decision():
    levels = levels_of(
        unit(call("dropout", 1.0, 4, is_random=True), call("mm", 3.0, 4), call("dropout", 1.0, 4, 1, is_random=True))
    )
    for level in levels:
        assert kept(level) & {("dropout", 0), ("dropout", 1)} in (set(), {("dropout", 0), ("dropout", 1)})
    assert any(("dropout", 0) in kept(level) for level in levels)


def test_a_chain_in_place_is_one_decision():
    levels = levels_of(unit(call("bn", 1.0, 8), call("relu_", 1.0, 0, base=0), call("conv", 9.0, 8)))
    assert all((("bn", 0) in kept(level)) == (("relu_", 0) in kept(level)) for level in levels)
    assert any(("relu_", 0) in kept(level) for level in levels)


def test_what_must_be_kept_is_kept_at_every_level():
    levels = levels_of(unit(call("conv", 9.0, 8), call("bn", 1.0, 8, must_keep=True)))
    assert len(levels) > 1
    assert all(("bn", 0) in kept(level) for level in levels[:-1])


def test_what_must_be_kept_and_cannot_be_leaves_the_unit_as_it_is():
    (level,) = levels_of(unit(call("bn", 1.0, 8, must_keep=True, can_keep=False)))
    assert level.is_untouched


def test_a_unit_that_changes_its_input_is_left_as_it_is():
    (level,) = levels_of(unit(call("mm", 1.0, 8), refusal="it changes its own input"))
    assert level.is_untouched


def test_compilers_compute_again_what_is_no_product_for_nothing():
    levels = levels_of(unit(call("mm", 3.0, 8, is_product=True), call("gelu", 2.0, 8), is_compiled=True))
    assert levels[0].seconds == 3.0
    assert all(("gelu", 0) not in kept(level) for level in levels)


def test_offloading_takes_no_more_than_the_link_carries_beside_the_unit():
    calls = (call("mm", 1.0, 100), call("bmm", 1.0, 100, 1))
    slow, fast = levels_of(unit(*calls), 70.0), levels_of(unit(*calls), 1e6)
    offloaded = [{c.operator for c in level.choices if c.action is Action.OFFLOAD} for level in (*slow, *fast)]
    assert {"mm", "bmm"} in offloaded[len(slow) :]
    assert all(len(moved) <= 1 for moved in offloaded[: len(slow)])
    assert min(level.size_bytes for level in fast if level.seconds < 0.1) == 0
    # What is faster on the GPU and as small may still lose to what costs the host nothing.
    assert any(not level.choices and not level.is_untouched for level in fast)


def test_levels_that_keep_more_than_autograd_are_left_out():
    assert [level.size_bytes for level in levels_of(unit(call("mm", 1.0, 50), saved=50))] == [0, 50]


# -- the solver ----------------------------------------------------------------------------------------------------------------


def brute(kinds: list[Kind], capacity: int) -> float:
    ways = [list(itertools.combinations_with_replacement(kind.levels, kind.num_units)) for kind in kinds]
    chosen = ([level for part in way for level in part] for way in itertools.product(*ways))
    fitting = (way for way in chosen if sum(level.size_bytes for level in way) <= capacity)
    return min((sum(level.seconds for level in way) for way in fitting), default=math.inf)


levels = st.lists(st.builds(Level, seconds=st.integers(0, 20).map(float), size_bytes=st.integers(0, 20)), min_size=1, max_size=3)
kinds = st.lists(st.builds(Kind, st.integers(1, 3), levels), min_size=1, max_size=2)


@settings(max_examples=25, deadline=None)
@given(kinds, st.integers(0, 80))
def test_no_choice_beats_the_solver(kinds: list[Kind], capacity: int):
    found, best = solve(kinds, capacity), brute(kinds, capacity)
    assert (found is None) == math.isinf(best)
    if found is not None:
        assert found.seconds == pytest.approx(best)
        assert found.size_bytes <= capacity
        assert [sum(counts) for counts in found.counts] == [kind.num_units for kind in kinds]


def test_126_equal_layers_are_one_small_programme():
    calls = [call(f"op{number}", 1e-3 * (1 + number % 7), 2**20 * (1 + number % 5)) for number in range(60)]
    kind = Kind(126, levels_of(unit(*calls, saved=2**28)))
    found = solve([kind], 126 * 2**26)
    assert found is not None
    assert sum(found.counts[0]) == 126
    assert sum(count > 0 for count in found.counts[0]) <= 3
