"""Kernels queue on their streams, waits order them, the host runs ahead: exact times, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.timing.breakdown import RunTime, covered_seconds
from memfit.timing.operators.calls import Bound, Cost
from memfit.timing.timeline import ASK_SECONDS, QUEUE_DEPTH, Timeline


def finish(timeline: Timeline) -> float:
    timeline.synchronize()
    return timeline.host


def issue(timeline: Timeline, host: float, stream: int, seconds: float) -> None:
    timeline.spend(host)
    timeline.run(stream, seconds, 0, -1)


def test_a_busy_gpu_hides_the_host() -> None:
    timeline = Timeline()
    for _ in range(10):
        issue(timeline, 1.0, 0, 5.0)
    assert finish(timeline) == 1.0 + 10 * 5.0


def test_a_slow_host_leaves_the_gpu_waiting() -> None:
    timeline = Timeline()
    for _ in range(10):
        issue(timeline, 5.0, 0, 1.0)
    assert finish(timeline) == 10 * 5.0 + 1.0


def test_two_streams_run_side_by_side_and_a_wait_orders_them() -> None:
    timeline = Timeline()
    issue(timeline, 0.0, 1, 4.0)
    issue(timeline, 0.0, 2, 6.0)
    timeline.wait(1, timeline.arrival(2))
    issue(timeline, 0.0, 1, 1.0)
    assert finish(timeline) == 7.0


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (2.0, 3.0),  # wholly beside the collective, which takes 6: half as long again
        (10.0, 12.0),  # 4 of its seconds beside, the rest alone
    ],
)
def test_a_kernel_takes_longer_while_a_collective_runs_and_only_then(kernel: float, expected: float) -> None:
    timeline = Timeline(slowdown_beside=0.5)
    timeline.communicate(0, 1, 6.0, 0, -1)
    issue(timeline, 0.0, 0, kernel)
    assert timeline.arrival(0) == expected


def test_kernels_before_and_after_a_collective_take_their_price() -> None:
    timeline = Timeline(slowdown_beside=0.5)
    issue(timeline, 0.0, 0, 2.0)
    timeline.wait(0, timeline.communicate(0, 1, 6.0, 0, -1))
    issue(timeline, 0.0, 0, 3.0)
    assert timeline.arrival(0) == 2.0 + 6.0 + 3.0


def test_asking_does_not_wait_and_takes_a_little_time() -> None:
    timeline = Timeline()
    issue(timeline, 0.0, 0, 2.5 * ASK_SECONDS)
    end = timeline.arrival(0)
    assert [timeline.is_over(end) for _ in range(4)] == [False, False, True, True]
    assert timeline.host == 4 * ASK_SECONDS


def test_a_graph_runs_its_kernels_again_and_costs_the_host_nothing_more() -> None:
    timeline = Timeline(launch_seconds=0.5, gap_seconds=0.25)
    issue(timeline, 1.0, 0, 100.0)
    first = timeline.num_spans
    issue(timeline, 1.0, 3, 2.0)
    issue(timeline, 1.0, 4, 3.0)
    captured = timeline.captured_since(first)
    assert [seconds for seconds, _, _ in captured] == [2.0, 3.0]
    timeline.run_again(0, captured)
    assert timeline.host == 3.0
    assert timeline.arrival(0) == 101.5 + 0.25 + 2.0 + 0.25 + 3.0
    assert len(timeline.spans()) == timeline.num_spans == 5


def test_the_host_waits_when_the_queue_is_full() -> None:
    timeline = Timeline()
    for _ in range(QUEUE_DEPTH + 1):
        issue(timeline, 0.0, 0, 1.0)
    assert timeline.host == 1.0


def test_a_collective_begins_after_its_stream_and_nobody_waits_for_it_unasked() -> None:
    timeline = Timeline()
    issue(timeline, 0.0, 0, 2.0)
    end = timeline.communicate(0, 0, 10.0, 0, -1)
    issue(timeline, 0.0, 0, 3.0)
    assert (end, timeline.arrival(0)) == (12.0, 5.0)
    timeline.wait(0, end)
    assert timeline.arrival(0) == 12.0


def run_of(timeline: Timeline, *costs: Cost) -> RunTime:
    marks = (*timeline.steps, timeline.now())
    return RunTime(spans=timeline.spans(), costs=costs, steps=marks, basis="", interconnect="", peak_flops={"bf16": 1.0})


def test_a_breakdown_adds_up_to_the_step() -> None:
    timeline = Timeline()
    timeline.mark_step()
    timeline.spend(1.0)
    timeline.run(0, 4.0, 0, 0)
    end = timeline.communicate(0, 0, 6.0, 1, 0)
    timeline.run(0, 2.0, 0, 1)
    timeline.wait(0, end)
    timeline.run(0, 3.0, 0, 2)
    found = run_of(timeline, Cost("mm", 4.0, Bound.MEMORY), Cost("all_gather", 6.0, Bound.LINK)).breakdown(
        recomputed=frozenset((2,)), module_of_scope=(0, 1, -1), module_paths=("a", "a.b")
    )
    assert (found.total, found.compute, found.exposed_communication, found.idle) == (14.0, 9.0, 4.0, 1.0)
    assert (found.recompute, found.host, found.communication) == (3.0, 1.0, 6.0)
    assert found.by_module == {"a": 6.0, "a.b": 2.0}
    assert found.by_operator == {"mm": 9.0, "all_gather": 6.0}


def test_a_step_begins_when_the_one_before_it_is_done() -> None:
    timeline = Timeline()
    for _ in range(3):
        timeline.mark_step()
        timeline.run(0, 2.0, 0, -1)
    run = run_of(timeline, Cost("mm", 2.0, Bound.MEMORY, flops=1.0, flops_type="bf16"))
    assert [run.step_seconds(step) for step in range(3)] == [2.0, 2.0, 2.0]
    assert run.flops() == {"bf16": 1.0}


@pytest.mark.parametrize(("spans", "covered"), [((), 0.0), (((0, 1), (5, 1)), 2.0), (((0, 10), (2, 3), (9, 4)), 13.0)])
def test_what_overlaps_is_counted_once(spans: tuple[tuple[float, float], ...], covered: float) -> None:
    import numpy as np

    begin, seconds = (np.array([span[part] for span in spans], dtype=float) for part in (0, 1))
    assert covered_seconds(begin, seconds) == covered


def test_a_step_once_more() -> None:
    """The first of two equal steps, written down twice: sooner by what its predecessor had left to pay."""
    timeline = Timeline()
    timeline.mark_step()
    timeline.spend(3.0)
    issue(timeline, 1.0, 0, 2.0)
    issue(timeline, 1.0, 1, 5.0)
    run = RunTime(
        spans=timeline.spans(), costs=(), steps=(*timeline.steps, timeline.now()), basis="", interconnect="", peak_flops={}
    )
    assert [mark.seconds for mark in run.steps] == [0.0, 10.0]
    twice = run.with_last_step_again(2, sooner=3.0, first_scope=0, num_scopes=7)
    assert [mark.seconds for mark in twice.steps] == [0.0, 10.0, 17.0, 24.0]
    assert [mark.host_seconds for mark in twice.steps] == [0.0, 5.0, 7.0, 9.0]
    assert [mark.span for mark in twice.steps] == [0, 2, 4, 6]
    assert twice.spans.begin.tolist() == [4.0, 5.0, 11.0, 12.0, 18.0, 19.0]
    assert twice.spans.stream.tolist() == [0, 1] * 3
    assert twice.spans.scope.tolist() == [-1] * 6


def test_a_run_that_was_stopped_in_a_step_has_the_time_of_the_one_before_or_none() -> None:
    timeline = Timeline()
    for seconds in (2.0, 3.0):
        timeline.mark_step()
        timeline.run(0, seconds, 0, 0)
    run = run_of(timeline, Cost("mm", 3.0, Bound.MEMORY))
    assert run.without_last_step().step_seconds() == 2.0
    forgotten = replace(run, steps=tuple(replace(mark, span=max(mark.span - 1, 0)) for mark in run.steps))
    assert forgotten.without_last_step().num_steps == 0


def test_scopes_of_a_step_once_more_are_its_own() -> None:
    timeline = Timeline()
    timeline.mark_step()
    timeline.run(0, 1.0, 0, 4)
    timeline.run(0, 1.0, 0, 5)
    run = RunTime(
        spans=timeline.spans(), costs=(), steps=(*timeline.steps, timeline.now()), basis="", interconnect="", peak_flops={}
    )
    assert run.with_last_step_again(2, sooner=0.0, first_scope=5, num_scopes=10).spans.scope.tolist() == [4, 5, 4, 15, 4, 25]


def test_a_step_that_waits_for_its_host_has_a_range_and_one_that_does_not_has_none() -> None:
    def between(host: float, kernel: float) -> tuple[float, float]:
        timeline = Timeline()
        timeline.mark_step()
        timeline.spend(host)
        timeline.run(0, kernel, 0, 0)
        return replace(run_of(timeline, Cost("mm", kernel, Bound.MEMORY)), host_days=(0.5, 2.0)).step_seconds_range()

    assert between(host=10.0, kernel=1.0) == pytest.approx((6.0, 21.0))
    assert between(host=0.0, kernel=8.0) == pytest.approx((8.0, 8.0))
