"""What each stream did when: exact by hand, and what holds for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memfit.analysis.lanes import find_window, join, thin, trace_lanes
from memfit.ledger import Ledger, LedgerBuilder, RunInfo, Work, WorkKind

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, OTHER = (
    *(WorkKind.FORWARD, WorkKind.BACKWARD, WorkKind.OPTIMIZER),
    *(WorkKind.COMMUNICATION, WorkKind.OTHER),
)
Row = tuple[int, int, int, int, int]


def work_of(*rows: Row, stream: int = 0) -> Work:
    """Rows of kind, module, operator, beginning and end."""
    columns = [(stream, -1, kind, module, op, begin, end, end - begin, 1) for kind, module, op, begin, end in rows]
    return Work.from_rows([value for row in columns for value in row])


def rows_of(work: Work) -> list[tuple[int, ...]]:
    """Kind, module, operator, beginning, end, busy, kernels."""
    columns = (work.kind, work.module, work.op, work.begin_ns, work.end_ns, work.busy_ns, work.num_kernels)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_kernels_that_do_the_same_without_a_pause_are_one() -> None:
    found = join(
        work_of(
            (FORWARD, 2, 7, 0, 10),
            (FORWARD, 2, 8, 11, 40),
            (FORWARD, 2, 7, 41, 51),
            (FORWARD, 3, 7, 52, 60),  # of another module
            (BACKWARD, 3, 7, 61, 70),  # of another kind
            (BACKWARD, 3, 7, 73, 80),  # after a pause
        ),
        longest_pause_ns=1,
    )
    assert rows_of(found) == [
        (FORWARD, 2, 8, 0, 51, 49, 3),
        (FORWARD, 3, 7, 52, 60, 8, 1),
        (BACKWARD, 3, 7, 61, 70, 9, 1),
        (BACKWARD, 3, 7, 73, 80, 7, 1),
    ]


def test_collectives_are_one_only_if_they_are_the_same() -> None:
    found = join(work_of((COMMUNICATION, 1, 5, 0, 10), (COMMUNICATION, 1, 5, 10, 20), (COMMUNICATION, 1, 6, 20, 30)), 0)
    assert rows_of(found) == [(COMMUNICATION, 1, 5, 0, 20, 20, 2), (COMMUNICATION, 1, 6, 20, 30, 10, 1)]


def test_where_there_is_too_much_what_begins_together_is_one() -> None:
    # 0 is the model, 1 and 2 are in it, 3 and 4 are in 1.
    parents = np.array([-1, 0, 0, 1, 1])
    work = work_of(
        (FORWARD, 3, 7, 0, 10),
        (FORWARD, 4, 8, 10, 35),
        (FORWARD, 3, 7, 45, 50),
        (FORWARD, 2, 7, 52, 57),
        (BACKWARD, -1, 7, 90, 100),
        (OPTIMIZER, -1, 7, 110, 150),
    )
    assert thin(work, 6, parents) is work
    assert rows_of(thin(work, 4, parents)) == [
        (FORWARD, 1, 8, 0, 35, 35, 2),
        (FORWARD, 0, 7, 45, 57, 10, 2),
        (BACKWARD, -1, 7, 90, 100, 10, 1),
        (OPTIMIZER, -1, 7, 110, 150, 40, 1),
    ]
    # Still too many: rows of several kinds are one.
    assert rows_of(thin(work, 3, parents)) == [
        (FORWARD, 1, 8, 0, 35, 35, 2),
        (FORWARD, 0, 7, 45, 57, 10, 2),
        (OTHER, -1, 7, 90, 150, 50, 2),
    ]


kernels = st.lists(
    st.tuples(st.sampled_from(list(WorkKind)), st.integers(-1, 4), st.integers(0, 3), st.integers(0, 5), st.integers(1, 40)),
    min_size=1,
    max_size=60,
)


@given(kernels, st.integers(1, 10), st.integers(0, 5))
def test_putting_together_loses_no_time_and_never_overlaps(
    drawn: list[tuple[WorkKind, int, int, int, int]], most: int, pause: int
) -> None:
    rows, now = [], 0
    for kind, module, op, gap, length in drawn:
        rows.append((int(kind), module, op, now + gap, now + gap + length))
        now += gap + length
    work = work_of(*rows)
    parents = np.array([-1, 0, 0, 1, 1])
    for found in (join(work, pause), thin(work, most, parents), thin(join(work, pause), most, parents)):
        ledger_of(found).check()
        assert found.busy_ns.sum() == sum(length for *_, length in drawn)
        assert found.num_kernels.sum() == len(drawn)
        assert (found.begin_ns[0], found.end_ns[-1]) == (rows[0][3], now)
    assert len(thin(work, most, parents)) <= most


def ledger_of(work: Work) -> Ledger:
    """A run of two steps, of 100 and 1,000 nanoseconds."""
    times = iter([0, 0, 100, 1_100, 1_100])
    builder = LedgerBuilder(RunInfo(source="predicted", clock="timed"), clock=lambda: next(times))
    builder.step()
    builder.step()
    block = builder.alloc_before(8, builder.device("cuda:0"), builder.string("mesh_tp"))
    builder.free(block)
    parent = -1
    for name in "abcde":
        parent = builder.module(name, "Module", parent)
    return replace(builder.build(), work=work)


def test_lanes_are_streams_and_those_of_groups_come_last() -> None:
    group = replace(work_of((COMMUNICATION, -1, 0, 400, 500), stream=-1), group=np.array([0], dtype=np.int32))
    run = ledger_of(
        Work.concatenate(
            [
                group,
                work_of((FORWARD, -1, 0, 300, 310), (BACKWARD, -1, 0, 320, 350), stream=3),
                work_of((FORWARD, -1, 0, 200, 210)),
            ]
        )
    ).check()
    lanes = trace_lanes(run)
    assert [(lane.stream, lane.group, lane.busy_ns) for lane in lanes] == [(0, "", 10), (3, "", 40), (-1, "mesh_tp", 100)]
    assert lanes[1].busy_by_kind() == {FORWARD: 10, BACKWARD: 30}
    assert [len(lane.work) for lane in trace_lanes(run, most_spans=1)] == [1, 1, 1]


def test_the_window_is_the_last_step_until_all_is_done() -> None:
    window = find_window(ledger_of(work_of((FORWARD, -1, 0, 200, 1_500))))
    assert window is not None
    assert (window.begin_ns, window.end_ns) == (100, 1_500)
    assert find_window(ledger_of(work_of())) is None
    without_clock = ledger_of(work_of((FORWARD, -1, 0, 200, 300)))
    assert find_window(replace(without_clock, info=RunInfo(source="predicted"))) is None
