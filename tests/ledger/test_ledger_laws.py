"""Laws that hold for every ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.arbitrary_ledgers import Action, Player, ledgers, play, recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import LedgerLawError
from memfit.ledger import EventKind, Ledger, LedgerBuilder, Phase
from memfit.ledger.journal import Journal
from memfit.ledger.schema import TABLES


@given(ledgers)
def test_every_recording_keeps_the_laws(ledger: Ledger):
    assert ledger.check() is ledger


@given(ledger=ledgers)
def test_a_saved_ledger_is_the_same_when_loaded(tmp_path: Path, ledger: Ledger):
    ledger.save(tmp_path / "run.memfit")
    assert Ledger.load(tmp_path / "run.memfit").same_as(ledger)


@given(ledgers, ledgers)
def test_same_as_tells_ledgers_apart(one: Ledger, other: Ledger):
    assert one.same_as(one)
    if len(one.events) != len(other.events) or one.info != other.info:
        assert not one.same_as(other)


@given(
    st.lists(st.tuples(recordings, st.sampled_from(("flush", "build", "nothing"))), max_size=4),
)
def test_a_journal_holds_everything_up_to_its_last_flush(tmp_path: Path, parts: list[tuple[list[Action], str]]):
    builder = LedgerBuilder(journal=Journal(tmp_path / "run.memfit"))
    player, flushed = Player(builder), LedgerBuilder().build()
    for recording, then in parts:
        for action in recording:
            player.perform(action)
        if then != "nothing":
            flushed = _flush(builder, then)
    left_behind = Ledger.load(tmp_path / "run.memfit").check()
    whole = builder.close()

    assert not left_behind.info.complete
    assert replace(left_behind, info=flushed.info).same_as(flushed)
    assert _begins_with(whole, left_behind)
    assert Ledger.load(tmp_path / "run.memfit").same_as(whole)


@given(st.lists(st.tuples(st.sampled_from(("enter", "exit", "alloc")), st.integers(0, 20)), max_size=40))
def test_scopes_that_end_in_any_order_are_repaired_and_named(actions: list[tuple[str, int]]):
    """Of a parent that has ended, ended before what is inside it, or ended twice: a compiled step did all of it once."""
    builder = LedgerBuilder()
    parents: list[int] = []
    is_open: list[bool] = []
    is_misplaced = False
    for what, pick in actions:
        if what == "alloc":
            scope = pick % (len(parents) + 1) - 1
            builder.alloc(
                1 + pick, builder.device("cuda:0"), builder.string("aten.empty"), scope if scope >= 0 and is_open[scope] else -1
            )
        elif what == "enter":
            parent = pick % (len(parents) + 1) - 1
            is_misplaced |= parent >= 0 and not is_open[parent]
            parents.append(parent)
            is_open.append(True)
            builder.enter(Phase.FORWARD, parent=parent)
        elif parents:
            scope = pick % len(parents)
            above = [other for other in range(scope + 1, len(parents)) if is_open[other]]
            is_misplaced |= not is_open[scope] or bool(above)
            if is_open[scope]:
                is_open[scope:] = [False] * (len(parents) - scope)
            builder.exit(scope)
    ledger = builder.build().check()
    assert len(ledger.scopes) == len(parents)
    assert any("did not end inside the one around them" in note for note in ledger.info.assumptions) == is_misplaced


def _flush(builder: LedgerBuilder, how: str) -> Ledger:
    if how == "flush":
        builder.flush()
    return builder.build()


def _begins_with(whole: Ledger, part: Ledger) -> bool:
    """Tables only ever grow at their end, but for blocks found later to have been there before, whose events come first."""
    tables = [kind.NAME for kind in TABLES if kind.NAME != "events"]
    prefixes = [
        np.array_equal(values[: len(getattr(part, table))], getattr(getattr(part, table), name))
        for table in tables
        for name, values in getattr(whole, table).columns().items()
    ]
    return all(prefixes) and whole.strings[: len(part.strings)] == part.strings and len(part.events) <= len(whole.events)


# -- corruptions -------------------------------------------------------------------------------------------------------------


def _with_events(ledger: Ledger, **columns: np.ndarray) -> Ledger:
    return replace(ledger, events=replace(ledger.events, **columns))


def _keep_events(ledger: Ledger, kept: np.ndarray) -> Ledger:
    return _with_events(ledger, **{name: values[kept] for name, values in ledger.events.columns().items()})


def _some(ledger: Ledger, *kinds: EventKind) -> int:
    where = np.flatnonzero(np.isin(ledger.events.kind, kinds))
    return int(where[len(where) // 2])


def _dropped(ledger: Ledger, kind: EventKind) -> Ledger:
    return _keep_events(ledger, np.delete(np.arange(len(ledger.events)), _some(ledger, kind)))


def _twice(ledger: Ledger, kind: EventKind) -> Ledger:
    return _keep_events(ledger, np.insert(np.arange(len(ledger.events)), _some(ledger, kind), _some(ledger, kind)))


def _moved_first(ledger: Ledger, kind: EventKind) -> Ledger:
    event = _some(ledger, kind)
    return _keep_events(ledger, np.insert(np.delete(np.arange(len(ledger.events)), event), 0, event))


def _changed(ledger: Ledger, column: str, value: int, *kinds: EventKind) -> Ledger:
    values = getattr(ledger.events, column).copy()
    values[_some(ledger, *kinds)] = value
    return _with_events(ledger, **{column: values})


def _child_of_a_closed_scope(ledger: Ledger) -> Ledger:
    enter, leave = ledger.scope_enter, ledger.scope_exit
    pairs = np.argwhere(leave[:, None] < enter[None, :])
    parent = ledger.scopes.parent.copy()
    parent[pairs[0][1]] = pairs[0][0]
    return replace(ledger, scopes=replace(ledger.scopes, parent=parent))


def _own_parent(ledger: Ledger, table: str) -> Ledger:
    rows = getattr(ledger, table)
    parent = rows.parent.copy()
    parent[-1] = len(rows) - 1
    return replace(ledger, **{table: replace(rows, parent=parent)})


def _resized_after_free(ledger: Ledger) -> Ledger:
    freed = _some(ledger, EventKind.FREE)
    columns = {name: np.append(values, values[freed]) for name, values in ledger.events.columns().items()}
    columns["kind"][-1] = EventKind.RESIZE
    return _with_events(ledger, **columns)


def _with_last_work(ledger: Ledger, column: str, value: int) -> Ledger:
    values = getattr(ledger.work, column).copy()
    values[-1] = value
    return replace(ledger, work=replace(ledger.work, **{column: values}))


def _two_at_once(ledger: Ledger) -> Ledger:
    work = replace(ledger.work, end_ns=ledger.work.end_ns + 1)
    return replace(ledger, work=type(work).concatenate([work, work]))


CORRUPTIONS = {
    "an allocation is missing": lambda ledger: _dropped(ledger, EventKind.ALLOC),
    "an allocation happens twice": lambda ledger: _twice(ledger, EventKind.ALLOC),
    "a free happens twice": lambda ledger: _twice(ledger, EventKind.FREE),
    "a free comes first": lambda ledger: _moved_first(ledger, EventKind.FREE),
    "a free has a size": lambda ledger: _changed(ledger, "size", 1, EventKind.FREE),
    "a resize comes first": lambda ledger: _moved_first(ledger, EventKind.RESIZE),
    "a resize comes after the free": _resized_after_free,
    "an entry is missing": lambda ledger: _dropped(ledger, EventKind.ENTER),
    "an entry happens twice": lambda ledger: _twice(ledger, EventKind.ENTER),
    "an exit happens twice": lambda ledger: _twice(ledger, EventKind.EXIT),
    "an exit comes first": lambda ledger: _moved_first(ledger, EventKind.EXIT),
    "a size is negative": lambda ledger: _changed(ledger, "size", -1, *EventKind),
    "a block does not exist": lambda ledger: _changed(ledger, "subject", len(ledger.blocks), EventKind.ALLOC, EventKind.FREE),
    "a block has a negative number": lambda ledger: _changed(ledger, "subject", -1, EventKind.ALLOC),
    "a scope does not exist": lambda ledger: _changed(ledger, "subject", len(ledger.scopes), EventKind.ENTER, EventKind.EXIT),
    "a scope is inside one that is over": _child_of_a_closed_scope,
    "a scope is its own parent": lambda ledger: _own_parent(ledger, "scopes"),
    "a module is its own parent": lambda ledger: _own_parent(ledger, "modules"),
    "work ends before it begins": lambda ledger: _with_last_work(ledger, "end_ns", -1),
    "a stream is busy for longer than its work lasts": lambda ledger: _with_last_work(ledger, "busy_ns", 10**9),
    "work without a kernel": lambda ledger: _with_last_work(ledger, "num_kernels", 0),
    "a stream does two things at once": _two_at_once,
}


A_LITTLE_OF_EVERYTHING = [
    Action(name, 0, 8, "x") for name in ("module", "alloc", "resize", "free", "enter", "exit", "enter", "work")
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
@given(recording=recordings)
@settings(max_examples=25)
def test_check_notices_a_single_corruption(corrupt, recording: list[Action]):
    broken = corrupt(play(recording + A_LITTLE_OF_EVERYTHING))
    with pytest.raises(LedgerLawError, match="breaks its own laws") as caught:
        broken.check()
    assert caught.value.violations
