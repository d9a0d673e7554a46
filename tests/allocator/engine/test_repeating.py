"""A trial leaves repeats out, and ends as the whole run does."""

import numpy as np
import pytest
from helpers.allocator_requests import CAPACITIES, TOTAL_MEMORY, asked, random_settings, repeated_requests
from helpers.extreme_runs import ExtremeRun
from helpers.sanitized_engine import build_driver, serve
from hypothesis import HealthCheck, given, settings

from memfit.allocator import AllocatorSettings, parse_alloc_conf
from memfit.allocator.engine import Prepared, Rules, native, prepare, run, try_run
from memfit.allocator.engine.repeating import RepeatedStretch, find_stretches
from memfit.units import MIB


def repeating(text: str, count: int, after: str = "", conf: str = "") -> Prepared:
    prepared = prepare(
        asked(";".join([*[text] * count, *([after] if after else [])])), parse_alloc_conf(conf), use_recorded_addresses=False
    )
    return with_stretches(prepared)


def with_stretches(prepared: Prepared) -> Prepared:
    """Repeats are looked for however short the run is."""
    found = find_stretches(prepared.kind, prepared.block, (prepared.size, prepared.free_list), fewest_requests=1)
    vars(prepared)["stretches"] = found
    return prepared


def end(outcome) -> tuple[int, int]:
    return outcome.most_granted, outcome.least_refused


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(repeated_requests(), random_settings(), CAPACITIES)
def test_a_trial_ends_as_the_run_does(requests, how, capacity):
    prepared, rules = with_stretches(prepare(requests, how, use_recorded_addresses=False)), Rules.of(how, capacity, TOTAL_MEMORY)
    whole, tried = run(prepared, rules), try_run(prepared, rules)
    assert tried.completes == (whole.num_done == len(requests))
    assert end(tried) == end(whole)


def test_repeats_are_found_between_other_requests():
    text = ";".join(["x 7MiB", *["a 3MiB; b 2MiB; free a; c 1MiB; free b; free c"] * 20, "y 9MiB; free y; free x"])
    prepared = with_stretches(prepare(asked(text), AllocatorSettings(), use_recorded_addresses=False))
    assert prepared.stretches == (RepeatedStretch(first=1, period=6, num_repeats=20, first_block=1, blocks_of_each=3),)


def test_a_long_repeat_is_not_taken_for_the_short_ones_in_it():
    step = ";".join([*["a 1MiB; free a"] * 9, "b 5MiB; free b"])
    (found,) = repeating(step, 50).stretches
    assert (found.period, found.num_repeats) == (20, 50)


def test_repeats_that_change_nothing_are_left_out():
    """Shown by requests that could not be served: after the fourth repeat none is looked at."""
    prepared = repeating("a 30MiB; b 20MiB; free a; free b", 20)
    for column in (prepared.size, prepared.segment):
        column[4 * 10] = 2**50
    rules = Rules.of(AllocatorSettings(), 100 * MIB)
    assert run(prepared, rules).num_done == 4 * 10
    assert try_run(prepared, rules).completes == (native.library() is not None)


def test_what_grows_is_served_to_its_end():
    prepared = repeating("a 30MiB; b 20MiB; free a", 20)
    assert prepared.stretches
    assert not try_run(prepared, Rules.of(AllocatorSettings(), 401 * MIB)).completes
    assert try_run(prepared, Rules.of(AllocatorSettings(), 450 * MIB)).completes


def test_blocks_of_the_last_repeat_are_known_after_it():
    """Each repeat frees what the one before it asked for; the last one's is freed after all repeats, and its memory used again."""
    text = ";".join(f"x{i} 60MiB" if i == 0 else f"x{i} 60MiB; free x{i - 1}" for i in range(30))
    requests = asked(f"{text}; free x29; y 120MiB")
    prepared = with_stretches(prepare(requests, parse_alloc_conf("expandable_segments:True"), use_recorded_addresses=False))
    assert prepared.stretches
    for capacity in (119 * MIB, 120 * MIB):
        rules = Rules.of(parse_alloc_conf("expandable_segments:True"), capacity)
        assert try_run(prepared, rules).completes == (run(prepared, rules).num_done == len(requests)) == (capacity == 120 * MIB)


@pytest.mark.parametrize("text", ["a 3MiB; unused a; done a", "b 3MiB; a 2MiB; free b; free a; release 1"])
def test_runs_whose_repeats_are_not_left_out(text: str):
    requests = asked(";".join([text] * 20))
    prepared = prepare(requests, AllocatorSettings(), use_recorded_addresses=False)
    if "unused" in text:
        assert with_stretches(prepared).stretches == ()
    blocks = requests.block.copy()
    blocks[blocks >= 0] = blocks.max() - blocks[blocks >= 0]
    assert find_stretches(requests.kind, blocks, (requests.size,), fewest_requests=1) == ()


def test_short_runs_are_not_looked_at():
    prepared = prepare(asked(";".join(["a 3MiB; free a"] * 100)), AllocatorSettings(), use_recorded_addresses=False)
    assert prepared.stretches == ()


def test_sanitizers_see_nothing(tmp_path):
    driver = build_driver(tmp_path)
    if isinstance(driver, str):
        pytest.skip(driver)
    texts = ["a 30MiB; b 20MiB; free a; free b", "a 30MiB; b 512; free a", "a 30MiB; b 20MiB; free b; empty; free a"]
    runs = []
    for conf in ("", "expandable_segments:True"):
        for text in texts:
            for capacity in (None, 40 * MIB, 55 * MIB, 60 * MIB, 300 * MIB):
                prepared = repeating(text, 40, "z 70MiB; free z; y 3MiB", conf)
                rules = Rules.of(parse_alloc_conf(conf), capacity)
                runs.append(ExtremeRun(asked(text), prepared, rules, f"{text!r} on {capacity} with {conf!r}"))
    for served, each in zip(serve(driver, runs), runs, strict=True):
        assert end(served) == end(run(each.prepared, each.rules)), each.said
    for served, refused in zip(serve(driver, runs), serve(driver, runs, refuse_growth=True), strict=True):
        assert np.array_equal(served.completed, refused.completed)
