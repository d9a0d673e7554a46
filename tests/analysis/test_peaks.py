from __future__ import annotations

import pytest

from memfit.analysis import INIT, breakdown_at, current_breakdown, find_peak, find_step_peaks
from memfit.analysis.peaks import Peak, share_out
from memfit.ledger import Category, LedgerBuilder, Phase
from memfit.testing import ledger

RUN = ledger(
    """
    alloc 100 parameter layers.0.w; alloc 40 input x
    step; enter forward layers.0; alloc 10 a; alloc 5 tmp; free tmp; exit
    enter backward; enter backward layers.0; alloc 100 gradient layers.0.g; free a; exit; exit
    step; free x; free layers.0.g
    step; enter optimizer; alloc 300 optimizer-state layers.0.m; exit
    """
)


def test_the_peak_says_when_where_and_of_what():
    assert find_peak(RUN, 0) == Peak(
        device="cpu",
        event=19,
        time_ns=19_000,
        size_bytes=400,
        step=2,
        phase=Phase.OPTIMIZER,
        module="",
        breakdown={Category.PARAMETER: 100, Category.OPTIMIZER_STATE: 300},
    )


def test_each_step_has_its_peak_and_its_end():
    steps = find_step_peaks(RUN, 0)
    assert [(step.step, step.peak.event, step.peak.size_bytes, step.end_bytes) for step in steps] == [
        (INIT, 1, 140, 140),
        (0, 10, 250, 240),
        (1, 14, 240, 100),
        (2, 19, 400, 400),
    ]
    assert [(step.peak.phase, step.peak.module) for step in steps] == [
        (None, ""),
        (Phase.BACKWARD, "layers.0"),
        (None, ""),
        (Phase.OPTIMIZER, ""),
    ]
    assert steps[1].peak.breakdown == {
        Category.PARAMETER: 100,
        Category.INPUT: 40,
        Category.ACTIVATION: 10,
        Category.GRADIENT: 100,
    }


def test_a_peak_that_comes_up_twice_is_the_first():
    assert find_peak(ledger("alloc 1 x; free x; alloc 1 y"), 0).event == 0


def test_after_a_module_is_left_the_scope_around_it_runs():
    peak = find_peak(ledger("enter forward a; enter forward a.b; exit; alloc 1 x; exit"), 0)
    assert (peak.phase, peak.module) == (Phase.FORWARD, "a")


def test_the_root_is_named_by_its_class():
    assert find_peak(ledger("enter forward .; alloc 1 x"), 0).module == "(Module)"


def test_breakdowns_at_an_event_and_at_the_end():
    assert breakdown_at(RUN, 0, 0) == {Category.PARAMETER: 100}
    assert breakdown_at(RUN, 5, 0) == {
        Category.PARAMETER: 100,
        Category.INPUT: 40,
        Category.ACTIVATION: 10,
        Category.FORWARD_TEMPORARY: 5,
    }
    assert current_breakdown(RUN, 0) == {Category.PARAMETER: 100, Category.OPTIMIZER_STATE: 300}


def test_devices_are_apart():
    run = ledger("alloc 1 x; alloc 1 y on cuda:0")
    assert [find_peak(run, device).size_bytes for device in (0, 1)] == [1, 512]


def test_a_run_without_steps_is_all_initialisation():
    (only,) = find_step_peaks(ledger("alloc 7 x; free x"), 0)
    assert (only.step, only.peak.size_bytes, only.end_bytes) == (INIT, 7, 0)


def test_a_device_that_was_never_used():
    builder = LedgerBuilder()
    builder.device("cuda:0")
    peak = find_peak(builder.build(), 0)
    assert (peak.event, peak.time_ns, peak.size_bytes, peak.step, peak.phase, peak.breakdown) == (-1, 0, 0, INIT, None, {})
    assert [step.peak for step in find_step_peaks(builder.build(), 0)] == [peak]


def test_shares_are_the_largest_first():
    shares = share_out({Category.OTHER: 1, Category.INPUT: 3})
    assert [(share.category, share.size_bytes) for share in shares] == [(Category.INPUT, 3), (Category.OTHER, 1)]
    assert [share.fraction for share in shares] == pytest.approx([0.75, 0.25])
    assert share_out({}) == []
