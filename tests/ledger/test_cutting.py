"""A ledger up to some moment."""

from dataclasses import replace

from helpers.arbitrary_ledgers import ledgers
from hypothesis import given
from hypothesis import strategies as st

from memfit.ledger import Failure, Ledger, Work
from memfit.ledger.cutting import cut, cut_at_failure
from memfit.testing import ledger
from memfit.units import MIB


def test_blocks_and_scopes_that_come_later_are_gone():
    run = ledger("alloc 1MiB parameter a.w; enter forward a; alloc 2MiB x; enter forward a.b; alloc 3MiB y; exit; exit; free x")
    early = cut(run, 3).check()
    assert (len(early.events), len(early.blocks), len(early.scopes)) == (3, 2, 1)
    assert early.scope_exit.tolist() == [3]
    assert early.deltas.sum() == 3 * MIB


def test_what_streams_did_is_of_a_whole_step():
    run = replace(ledger("alloc 1MiB w; step; free w"), work=Work.from_rows([0, -1, 0, -1, 0, 0, 10, 10, 1]))
    assert [len(cut(run, count).work) for count in (2, 3)] == [0, 1]


def test_a_run_that_did_not_run_out_is_left_whole():
    run = ledger("alloc 1MiB w; free w")
    assert cut_at_failure(run) is run


def test_the_failure_says_where_to_cut():
    run = ledger("alloc 1MiB w; alloc 2MiB x; free x; free w")
    failed = replace(run, info=replace(run.info, failure=Failure(message="out of memory", time_ns=1500)))
    assert len(cut_at_failure(failed).events) == 2
    assert cut_at_failure(cut_at_failure(failed)).same_as(cut_at_failure(failed))


@given(run=ledgers, share=st.floats(0, 1))
def test_what_is_left_keeps_the_laws_and_what_was_in_use(run: Ledger, share: float):
    count = int(share * len(run.events))
    early = cut(run, count).check()
    assert early.deltas.tolist() == run.deltas[:count].tolist()
    assert early.events.kind.tolist() == run.events.kind[:count].tolist()
    assert (early.block_phase == run.block_phase[run.birth < count]).all()
    assert cut(run, len(run.events)).same_as(run)
