"""Appending, and what follows from it."""

from __future__ import annotations

import numpy as np

from memfit.ledger import EventKind, LedgerBuilder, Phase
from memfit.testing import ledger

MIB = 2**20


def test_words_are_kept_once():
    builder = LedgerBuilder()
    assert [builder.string(text) for text in ("a", "b", "a")] == [0, 1, 0]
    assert [builder.device(name) for name in ("cpu", "cuda:0", "cpu")] == [0, 1, 0]
    built = builder.build()
    assert built.strings == ("a", "b")
    assert [(device.name, device.granularity) for device in built.devices] == [("cpu", 1), ("cuda:0", 512)]


def test_blocks_found_later_to_have_been_there_before_come_first():
    builder = LedgerBuilder()
    device, op = builder.device("cpu"), builder.string("op")
    builder.step()
    later = builder.alloc(1, device, op)
    before = builder.alloc_before(2, device, op)
    built = builder.build().check()
    assert built.birth[before] == 0
    assert built.birth[later] == 2
    assert built.events.kind.tolist() == [EventKind.ALLOC, EventKind.STEP, EventKind.ALLOC]
    assert built.events.time_ns[0] == 0


def test_building_twice_gives_the_same_and_then_more():
    builder = LedgerBuilder()
    builder.step()
    first = builder.build()
    assert builder.build().same_as(first)
    builder.step()
    assert len(builder.build().events) == 2
    assert len(first.events) == 1


def test_time_does_not_run_backwards():
    builder = LedgerBuilder()
    for _ in range(100):
        builder.step()
    assert (np.diff(builder.build().events.time_ns) >= 0).all()


def test_what_never_happened_has_the_index_after_the_last():
    built = ledger("alloc 1 x; enter forward a; step")
    assert built.death.tolist() == [3]
    assert built.scope_exit.tolist() == [3]
    assert built.scope_enter.tolist() == [1]
    assert built.step_starts.tolist() == [2]


def test_deltas_are_rounded_as_the_device_rounds():
    built = ledger("alloc 1 x on cuda:0; alloc 1 y; resize x 513; resize y 3; resize x 0; free y; free x")
    assert built.deltas.tolist() == [512, 1, 512, 2, -1024, -3, 0]
    assert built.block_peak_bytes.tolist() == [1024, 3]


def test_blocks_know_where_they_were_born():
    built = ledger("alloc 1 x; enter backward; alloc 1 y; enter recompute a.b; alloc 1 z; exit; exit")
    assert built.block_phase.tolist() == [-1, Phase.BACKWARD, Phase.RECOMPUTE]
    assert [built.module_path(module) for module in built.block_module] == ["", "", "a.b"]


def test_the_root_is_called_by_its_class():
    built = ledger("enter forward .")
    assert built.module_path(0) == "(Module)"
    assert built.module_path(-1) == ""
