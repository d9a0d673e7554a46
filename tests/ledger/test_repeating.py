"""A ledger with its last step some more times, where that step leaves everything as it found it."""

from dataclasses import replace

import numpy as np
import pytest

from memfit.ledger import Ledger
from memfit.ledger.cutting import cut, leaves_all_as_it_was, repeat_last_step
from memfit.testing import ledger

MADE = "alloc 4MiB parameter a.w; step; enter forward a; alloc 1MiB x; exit; free x; alloc 8MiB optimizer-state a.m; "
STEP = "step; enter forward a; alloc 1MiB x; enter forward a.b; alloc 2MiB gradient a.w.grad; exit; exit; free x; free a.w.grad; "


def again(run: Ledger, times: int = 1, sooner_ns: int = 0) -> Ledger:
    total_ns = 1_000 * (len(run.events) - int(run.step_starts[-1]))
    return repeat_last_step(run, times, total_ns, sooner_ns=sooner_ns).check()


@pytest.mark.parametrize("times", [1, 3])
def test_it_is_the_run_that_goes_on(times: int):
    run = ledger(MADE + STEP)
    assert leaves_all_as_it_was(run)
    assert again(run, times).same_as(ledger(MADE + STEP * (1 + times)))


@pytest.mark.parametrize("times", [1, 3])
def test_what_takes_the_place_of_a_block_is_freed_in_turn(times: int):
    """As the positions of tokens do, which a model keeps until it is told others."""
    before, step = MADE + "alloc 1KiB p; ", STEP + "free p; alloc 1KiB p; "
    run = ledger(before + step)
    assert leaves_all_as_it_was(run)
    assert again(run, times).same_as(ledger(before + step * (1 + times)))


@pytest.mark.parametrize(
    "step",
    [
        "alloc 1KiB y",
        "free a.m",
        "resize a.m 4MiB",
        "resize a.m 4MiB; resize a.m 8MiB stream 3",
        "enter backward a",
        "free a.m; alloc 4MiB optimizer-state a.m",
        "free a.m; alloc 8MiB other",
        "free a.m; alloc 8MiB optimizer-state a.m on cuda:0",
    ],
)
def test_a_step_that_leaves_another_state_is_not_to_be_repeated(step: str):
    assert not leaves_all_as_it_was(ledger(MADE + STEP + step))


def test_a_size_that_is_back_at_the_end_is_no_change():
    assert leaves_all_as_it_was(ledger(MADE + STEP + "resize a.m 0; resize a.m 8MiB"))


def test_without_a_step_there_is_nothing_to_repeat():
    assert not leaves_all_as_it_was(ledger("alloc 1MiB w; free w"))


def test_a_scope_from_before_the_step_that_is_still_open():
    assert not leaves_all_as_it_was(ledger("enter forward a; step; alloc 1MiB x; free x; exit"))


def test_memory_that_came_back_late_is_not_foreseen():
    run = ledger(MADE + STEP)
    late = replace(run.returns, block=np.array([2]), events_later=np.array([1]))
    assert not leaves_all_as_it_was(replace(run, returns=late))


def test_a_repetition_can_come_sooner_after_its_beginning():
    run = ledger(MADE + STEP)
    start, end = int(run.step_starts[-1]), len(run.events)
    times = again(run, 2, sooner_ns=100).events.time_ns
    first, second = times[end : 2 * end - start], times[2 * end - start :]
    step = times[start:end] - times[start]
    assert (first[1:] - first[0]).tolist() == (step[1:] - 100).tolist()
    assert (second - first).tolist() == [1_000 * (end - start) - 100] * (end - start)


@pytest.mark.parametrize("times", [1, 3])
def test_what_comes_after_the_step_stays_at_the_end(times: int):
    before, step = MADE + "alloc 1KiB p; ", STEP + "free p; alloc 1KiB p; "
    after = "free a.m; enter forward a; alloc 3MiB y; exit; free p"
    run, num_after = ledger(before + step + after), 5
    assert leaves_all_as_it_was(cut(run, len(run.events) - num_after))
    total_ns = 1_000 * (len(run.events) - num_after - int(run.step_starts[-1]))
    assert repeat_last_step(run, times, total_ns, num_after=num_after).same_as(ledger(before + step * (1 + times) + after))


def test_what_is_cut_off_can_be_put_back():
    three = ledger(MADE + STEP * 2)
    assert again(cut(three, int(three.step_starts[-1]))).same_as(three)
