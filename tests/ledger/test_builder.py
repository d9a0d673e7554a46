"""Appending, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.ledger import Category, EventKind, Ledger, LedgerBuilder, Phase
from memfit.ledger.journal import Journal
from memfit.ledger.schema import Blocks, Events, Modules, Roles, Scopes, Table
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


class Interrupted(list):
    """Rows of which some are appended in the middle of a flush, as by another thread."""

    def __getitem__(self, item):
        taken = super().__getitem__(item)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return taken


@pytest.mark.parametrize("table", [Events, Blocks, Scopes, Modules, Roles])
def test_a_flush_takes_what_was_there_at_one_moment(tmp_path: Path, table: type[Table]):
    """The process may be killed right after it: what is in the journal is lawful."""
    path = tmp_path / "run.memfit"
    builder = LedgerBuilder(journal=Journal(path))
    device, op = builder.device("cpu"), builder.string("op")

    def go_on(name: str) -> None:
        scope = builder.enter(Phase.FORWARD, builder.module(name, "Linear"))
        builder.role(builder.alloc(4, device, op, scope), Category.PARAMETER, name=f"{name}.weight")
        builder.role(builder.alloc_before(8, device, op), Category.INPUT)
        builder.exit(scope)

    go_on("first")
    rows = Interrupted(builder._rows[table])
    rows.meanwhile = lambda: go_on("second")
    builder._rows[table] = rows
    builder._events, builder._blocks, builder._scopes = (builder._rows[kind] for kind in (Events, Blocks, Scopes))
    builder.flush()
    flushed = Ledger.load(path).check()
    assert len(flushed.blocks) == 2
    assert len(builder.close().check().blocks) == 4


# -- scopes that do not end inside the one around them --------------------------------------------------------------------------


def test_a_scope_that_never_ended_ends_with_the_one_around_it():
    builder = LedgerBuilder()
    outer = builder.enter(Phase.FORWARD)
    inner = builder.enter(Phase.FORWARD, parent=outer)
    builder.exit(outer)
    built = builder.build().check()
    assert built.events.subject.tolist() == [outer, inner, inner, outer]
    assert "1 calls of modules or phases" in built.info.assumptions[-1]


def test_a_scope_is_left_once():
    builder = LedgerBuilder()
    scope = builder.enter(Phase.FORWARD)
    builder.exit(scope)
    builder.exit(scope)
    built = builder.build().check()
    assert built.events.kind.tolist() == [EventKind.ENTER, EventKind.EXIT]
    assert built.info.assumptions


def test_a_scope_inside_one_that_is_over_is_inside_none():
    builder = LedgerBuilder()
    over = builder.enter(Phase.FORWARD)
    builder.exit(over)
    late = builder.enter(Phase.BACKWARD, parent=over)
    builder.exit(late)
    assert builder.build().check().scopes.parent.tolist() == [-1, -1]


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 5)), max_size=12), st.booleans())
def test_scopes_nest_in_whatever_order_they_come(actions: list[tuple[bool, int]], in_columns: bool):
    builder = LedgerBuilder()
    for begins, number in actions:
        if begins:
            builder.enter(Phase.FORWARD, parent=min(number, builder.num_scopes - 1))
        elif 0 <= number < builder.num_scopes:
            builder.exit(number)
        if in_columns:  # two scopes, the second of them still open
            first = builder.num_scopes
            events = [(EventKind.ENTER, first), (EventKind.ENTER, first + 1), (EventKind.EXIT, first)]
            builder.append(
                Events.from_rows([value for kind, scope in events for value in (int(kind), scope, 0, builder.elapsed_ns())]),
                Blocks.empty(),
                Scopes.from_rows([int(Phase.FORWARD), -1, -1] * 2),
                Roles.empty(),
            )
    builder.build().check()


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-1, 5)), max_size=6),
    st.sets(st.integers(0, 5)),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=12),
)
def test_columns_nest_whatever_is_open(actions: list[tuple[bool, int]], supposed: set[int], in_columns: list[tuple[bool, int]]):
    """Columns were taken from where some scopes were open around them, and are written where others are."""
    builder = LedgerBuilder()
    for begins, number in actions:
        if begins:
            builder.enter(Phase.FORWARD, parent=min(number, builder.num_scopes - 1))
        elif 0 <= number < builder.num_scopes:
            builder.exit(number)
    around = sorted(number for number in supposed if number < builder.num_scopes)
    events: list[tuple[int, int]] = []
    parents: list[int] = []
    for begins, number in in_columns:
        if begins:
            parents.append([-1, *around][number % (1 + len(around))])
            around.append(builder.num_scopes + len(parents) - 1)
            events.append((int(EventKind.ENTER), around[-1]))
        elif around:
            events.append((int(EventKind.EXIT), around.pop()))
    builder.append(
        Events.from_rows([value for kind, scope in events for value in (kind, scope, 0, 0)]),
        Blocks.empty(),
        Scopes.from_rows([value for parent in parents for value in (int(Phase.FORWARD), -1, parent)]),
        Roles.empty(),
    )
    assert len(builder.build().check().scopes) == builder.num_scopes


def test_columns_inside_a_scope_that_is_open_are_left_as_they_are():
    builder = LedgerBuilder()
    outer = builder.enter(Phase.BACKWARD)
    events = [(EventKind.ENTER, 1), (EventKind.EXIT, 1), (EventKind.EXIT, outer)]
    builder.append(
        Events.from_rows([value for kind, scope in events for value in (int(kind), scope, 0, 0)]),
        Blocks.empty(),
        Scopes.from_rows([int(Phase.BACKWARD), -1, outer]),
        Roles.empty(),
    )
    built = builder.build().check()
    assert built.scopes.parent.tolist() == [-1, outer]
    assert not built.info.assumptions


def test_scopes_that_nest_are_not_spoken_of():
    builder = LedgerBuilder()
    outer = builder.enter(Phase.FORWARD)
    builder.exit(builder.enter(Phase.FORWARD, parent=outer))
    builder.exit(outer)
    assert not builder.build().info.assumptions


def test_equal_ledgers_are_equal_files(tmp_path: Path):
    built = ledger("step; enter forward a; alloc 4MiB parameter w; exit; free w")
    for number in range(4):
        built.save(tmp_path / f"{number}.memfit")
    assert len({(tmp_path / f"{number}.memfit").read_bytes() for number in range(4)}) == 1
    assert Ledger.load(tmp_path / "0.memfit").same_as(built)
