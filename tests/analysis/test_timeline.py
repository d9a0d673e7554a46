from __future__ import annotations

import numpy as np

from memfit.analysis.timeline import MemoryTimeline, breakdowns_at, trace_categories, trace_total
from memfit.ledger import Category
from memfit.testing import ledger

RUN = ledger(
    """
    alloc 100 parameter w; alloc 600 g on cuda:0; step
    enter forward a; alloc 20 x; exit; enter backward; resize x 30; free x; exit
    """
)


def test_the_total_on_each_device():
    cpu, cuda = trace_total(RUN, 0), trace_total(RUN, 1)
    assert cpu.events.tolist() == [-1, 0, 4, 7, 8]
    assert cpu.totals.tolist() == [0, 100, 120, 130, 100]
    assert cuda.events.tolist() == [-1, 1]
    assert cuda.totals.tolist() == [0, 1024]


def test_the_total_of_each_category():
    timelines = trace_categories(RUN, 0)
    assert {category: timeline.totals.tolist() for category, timeline in timelines.items()} == {
        Category.PARAMETER: [0, 100],
        Category.ACTIVATION: [0, 20, 30, 0],
    }
    assert list(trace_categories(RUN, 1)) == [Category.OTHER]


def test_a_timeline_knows_what_was_in_use_at_any_event():
    assert trace_total(RUN, 0).at(np.arange(-1, 10)).tolist() == [0, 100, 100, 100, 100, 120, 120, 120, 130, 100, 100]


def test_the_highest_event_of_a_range_counts_what_the_range_begins_with():
    timeline = trace_total(RUN, 0)
    first, last = np.array([-1, 5, 8, 0, -1]), np.array([9, 6, 9, 3, -1])
    assert timeline.highest_between(first, last).tolist() == [7, 5, 8, 0, -1]


def test_breakdowns_leave_out_what_holds_nothing():
    assert breakdowns_at(RUN, np.array([-1, 0, 4, 9]), 0) == [
        {},
        {Category.PARAMETER: 100},
        {Category.PARAMETER: 100, Category.ACTIVATION: 20},
        {Category.PARAMETER: 100},
    ]


def test_what_each_block_holds_at_an_event():
    assert RUN.block_bytes_at(4).tolist() == [100, 1024, 20]
    assert RUN.block_bytes_at(7).tolist() == [100, 1024, 30]
    assert RUN.block_bytes_at(8).tolist() == [100, 1024, 0]
    assert RUN.block_bytes_at(-1).tolist() == [0, 0, 0]


def test_a_reduced_timeline_keeps_highs_lows_and_the_end():
    totals = np.array([0, 5, 1, 2, 9, 3, 3, 7, 6, 4])
    reduced = MemoryTimeline(np.arange(-1, 9), totals).reduced(5)
    assert reduced.totals.tolist() == [0, 9, 3, 7, 4]
    assert reduced.events.tolist() == [-1, 3, 4, 6, 8]


def test_a_short_timeline_is_not_reduced():
    timeline = trace_total(RUN, 0)
    assert timeline.reduced(5) is timeline


def test_an_empty_ledger_with_a_device_that_is_never_used():
    run = ledger("alloc 0 x")
    assert trace_total(run, 0).totals.tolist() == [0, 0]
    assert breakdowns_at(ledger(""), np.array([-1]), 0) == [{}]
