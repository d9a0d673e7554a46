"""What a run did, in order, and what each phase cost."""

from __future__ import annotations

from helpers.arbitrary_ledgers import ledgers
from hypothesis import given

from memfit.analysis import INIT, PhaseSpan, find_peak, trace_phases
from memfit.ledger import Ledger, Phase
from memfit.testing import ledger
from memfit.units import MIB

RUN = ledger("""
    alloc 1MiB parameter w
    step
    enter forward a; alloc 2MiB x; free x; exit
    enter forward b; alloc 1MiB y; exit
    enter backward; alloc 4MiB z; free y; free z; exit
    step
    enter forward a; enter forward a.b; exit; exit
    enter backward
""")


def span(step: int, phase: Phase, events: tuple[int, int], peak: int, end: int) -> PhaseSpan:
    return PhaseSpan(
        step=step, phase=phase, first_event=events[0], last_event=events[1], peak_bytes=peak * MIB, end_bytes=end * MIB
    )


def test_phases_that_follow_each_other_within_a_step_are_one():
    assert trace_phases(RUN, 0) == [
        span(0, Phase.FORWARD, (2, 8), 3, 2),
        span(0, Phase.BACKWARD, (9, 13), 6, 1),
        span(1, Phase.FORWARD, (15, 18), 1, 1),
        span(1, Phase.BACKWARD, (19, 19), 1, 1),
    ]


def test_a_new_step_begins_a_new_span():
    spans = trace_phases(ledger("alloc 1MiB w; enter forward a; exit; step; enter forward a; exit"), 0)
    assert [(found.step, found.phase) for found in spans] == [(INIT, Phase.FORWARD), (0, Phase.FORWARD)]


def test_a_run_without_phases_has_none():
    assert trace_phases(ledger("alloc 1MiB w"), 0) == []


@given(ledgers)
def test_no_phase_is_above_the_peak(run: Ledger):
    for device in range(len(run.devices)):
        peak = find_peak(run, device).size_bytes
        spans = trace_phases(run, device)
        assert all(found.end_bytes <= found.peak_bytes <= peak for found in spans)
        assert [found.first_event for found in spans] == sorted(found.first_event for found in spans)
