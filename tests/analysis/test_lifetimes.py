from __future__ import annotations

from memfit.analysis import BlockLife, largest_blocks_at, trace_lifetimes
from memfit.ledger import Category
from memfit.testing import ledger

RUN = ledger(
    """
    alloc 100 parameter a.w; enter forward a; alloc 10 x; resize x 300; alloc 40 y; alloc 1 gpu on cuda:0; exit
    enter backward; resize x 20; free x; exit
    """
)


def test_every_block_has_its_life():
    parameter, activation, *_ = trace_lifetimes(RUN)
    assert parameter == BlockLife(
        block=0,
        op="a.w",
        module="a",
        name="a.w",
        category=Category.PARAMETER,
        device="cpu",
        size_bytes=100,
        birth_event=0,
        birth_ns=0,
        death_event=None,
        death_ns=None,
        lifetime_ns=10_000,
    )
    assert activation == BlockLife(
        block=1,
        op="x",
        module="a",
        name="",
        category=Category.ACTIVATION,
        device="cpu",
        size_bytes=300,
        birth_event=2,
        birth_ns=2_000,
        death_event=9,
        death_ns=9_000,
        lifetime_ns=7_000,
    )
    assert len(trace_lifetimes(RUN)) == 4


def test_the_largest_blocks_with_what_they_held_then():
    def held(event: int, device: int, count: int) -> list[tuple[str, int]]:
        return [(life.op, life.size_bytes) for life in largest_blocks_at(RUN, event, device, count)]

    assert held(4, 0, 3) == [("x", 300), ("a.w", 100), ("y", 40)]
    assert held(4, 0, 1) == [("x", 300)]
    assert held(8, 0, 9) == [("a.w", 100), ("y", 40), ("x", 20)]
    assert held(9, 0, 9) == [("a.w", 100), ("y", 40)]
    assert held(9, 1, 9) == [("gpu", 512)]
    assert held(-1, 0, 9) == []


def test_of_equal_blocks_the_older_comes_first():
    run = ledger("alloc 1 x; alloc 1 y; alloc 2 z")
    assert [life.op for life in largest_blocks_at(run, 2, 0, 3)] == ["z", "x", "y"]


def test_no_blocks():
    assert trace_lifetimes(ledger("step")) == []
