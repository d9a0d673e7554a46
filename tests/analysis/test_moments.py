"""The moments that a drawing needs, and what was in use at each."""

from __future__ import annotations

import numpy as np
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given
from hypothesis import strategies as st

from memfit.analysis import breakdown_at, choose_moments, find_peak, find_step_peaks, largest_blocks_at, largest_live
from memfit.ledger import Category, Ledger
from memfit.testing import ledger
from memfit.units import MIB


def waves(count: int) -> Ledger:
    """A block of i MiB comes and goes, for each i from 1 to ``count``: the peak is the last but one event."""
    return ledger("; ".join(f"alloc {i}MiB x{i}; free x{i}" for i in range(1, count + 1)))


def test_a_short_run_has_every_event_on_every_level():
    moments = choose_moments(waves(3), 0, (10, 20))
    assert moments.events.tolist() == [0, 1, 2, 3, 4, 5]
    assert moments.totals.tolist() == [MIB, 0, 2 * MIB, 0, 3 * MIB, 0]
    assert [level.tolist() for level in moments.levels] == [[0, 1, 2, 3, 4, 5]] * 2
    assert moments.category_bytes[Category.OTHER].tolist() == moments.totals.tolist()


def test_a_long_run_keeps_the_highest_of_each_piece():
    moments = choose_moments(waves(100), 0, (10, 50))
    coarse, fine = (moments.events[level].tolist() for level in moments.levels)
    # 201 entries in ten pieces: the highest of a piece is its last allocation. The first and the last event are there too.
    assert coarse == [0, 18, 38, 58, 78, 98, 118, 138, 158, 178, 198, 199]
    assert 50 <= len(fine) <= 52
    assert set(coarse[1:-1]) <= set(fine)


def test_what_is_to_be_kept_is_on_every_level():
    moments = choose_moments(waves(100), 0, (4, 20), keep=[5, 77])
    assert all({5, 77} <= set(moments.events[level].tolist()) for level in moments.levels)


@given(ledgers, st.integers(1, 12))
def test_peaks_are_never_lost(run: Ledger, count: int):
    for device in range(len(run.devices)):
        kept = [step.peak.event for step in find_step_peaks(run, device) if step.peak.event >= 0]
        moments = choose_moments(run, device, (count, 3 * count), keep=kept) if len(run.events) else None
        if moments is None:
            continue
        peak = find_peak(run, device)
        assert all(moments.totals[level].max(initial=0) == peak.size_bytes for level in moments.levels)
        for i, event in enumerate(moments.events.tolist()):
            assert {c: sizes[i] for c, sizes in moments.category_bytes.items() if sizes[i]} == breakdown_at(run, event, device)


@given(ledgers, st.integers(1, 5))
def test_the_largest_blocks_are_those_that_a_look_at_one_moment_finds(run: Ledger, count: int):
    events = np.arange(len(run.events))
    for device in range(len(run.devices)):
        for event, found in enumerate(largest_live(run, device, events, count)):
            lives = largest_blocks_at(run, event, device, count)
            assert found == [(life.block, life.size_bytes) for life in lives]
