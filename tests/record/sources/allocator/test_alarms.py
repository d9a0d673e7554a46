"""Leaks that people write are named with the module and the line; what only looks like one is not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.leaks import LEAKS, STEPS, Hooks, StateOfFrozenParameters, Training, watch
from helpers.simulated_history import SimulatedHistory

from memfit.allocator import RequestKind, Requests
from memfit.record.sources.allocator.alarms import AlarmWatch, StepFigures, best_setting, is_steady_growth
from memfit.record.sources.allocator.retention import Retention
from memfit.record.tracker import Tracker
from memfit.units import GIB, MIB

SELDOM = Retention(every=1000)


@cache
def watched(training, steps=STEPS, retention=None):
    with SimulatedHistory(device="cuda:0") as history:
        return watch(training, lambda: Tracker(history=history, retention=retention), "cpu", steps)


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_is_named_with_its_module_and_its_line(kind):
    training, where = LEAKS[kind]
    ledger, warned = watched(training, retention=SELDOM)
    named = [alarm for alarm in ledger.info.alarms if where in alarm]
    assert named, ledger.info.alarms
    assert training is StateOfFrozenParameters or any("leaks.py:" in alarm for alarm in named)
    assert all(alarm.startswith("leak: ") for alarm in ledger.info.alarms)
    assert any("leak: " in message for message in warned)


def test_a_run_that_does_not_leak_raises_no_alarm():
    ledger, warned = watched(Training)
    assert ledger.info.alarms == ()
    assert warned == []


def test_what_is_kept_in_full_for_an_alarm_has_the_lines_as_operators():
    ledger, _ = watched(Hooks, retention=SELDOM)
    assert any(text.startswith("leaks.py:") for text in ledger.strings)


def test_growth_that_becomes_ever_smaller_is_a_cache():
    assert is_steady_growth([0, MIB, 2 * MIB, 3 * MIB])
    assert not is_steady_growth([0, 8 * MIB, 10 * MIB, 11 * MIB])
    assert not is_steady_growth([0, MIB, MIB, 2 * MIB])
    assert not is_steady_growth([0, MIB, 2 * MIB])


def test_levels_that_go_up_and_down_are_no_growth():
    watch = AlarmWatch()
    for step in range(200):
        watch.note(figures(step, allocated=(step % 7) * 100 * MIB))
        assert not watch.looks_closely


def figures(step, allocated=0, reserved=0, active=0, capacity=80 * GIB):
    return StepFigures("cuda:0", capacity, step, step, 0, 0, allocated, allocated, reserved, active, 0, -1)


def fragmenting_requests():
    """Blocks of ever larger sizes, the smaller one freed each time: the cache keeps pieces that nobody fits into."""
    kind, block, size = [], [], []
    for number in range(60):
        kind += [RequestKind.ALLOC]
        block += [number]
        size += [(200 + 24 * number) * MIB]
        if number:
            kind += [RequestKind.FREE]
            block += [number - 1]
            size += [0]
    zeros = np.zeros(len(kind), dtype=np.int64)
    return Requests(
        kind=np.array(kind, dtype=np.int64),
        block=np.array(block, dtype=np.int64),
        size=np.array(size, dtype=np.int64),
        stream=zeros,
        pool=zeros,
        event=np.arange(len(kind)),
        segment_address=zeros,
        segment_size=zeros,
        num_blocks=60,
        num_events=len(kind),
        source="ledger",
    )


def test_fragmentation_near_the_limit_is_named_with_the_setting_that_helps():
    watch, full = AlarmWatch(), figures(7, allocated=40 * GIB, reserved=70 * GIB, active=40 * GIB)
    alarms = watch.fragmentation(full, fragmenting_requests, "2.11", "")
    assert len(alarms) == 1
    assert "has reserved 70.00 GiB, 30.00 GiB more than was ever in use, with 10.00 GiB left" in alarms[0]
    assert "expandable_segments:True would reserve" in alarms[0]
    assert watch.fragmentation(full, fragmenting_requests, "2.11", "") == [], "it is said once"


def test_fragmentation_far_from_the_limit_is_nobodys_concern():
    assert AlarmWatch().fragmentation(figures(7, reserved=50 * GIB, active=20 * GIB), fragmenting_requests, "2.11", "") == []


def test_memory_that_was_in_use_and_is_cached_is_no_fragmentation():
    after_an_error = replace(figures(7, reserved=75 * GIB, active=GIB), peak=74 * GIB)
    assert AlarmWatch().fragmentation(after_an_error, fragmenting_requests, "2.11", "") == []


def test_where_no_setting_is_better_none_is_named():
    assert best_setting(fragmenting_requests(), "2.11", "expandable_segments:True") is None
