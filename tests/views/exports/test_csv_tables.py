"""Comma-separated values, read back with Python's own reader."""

from __future__ import annotations

import csv
import io

import pytest
from helpers.arbitrary_ledgers import ledgers
from helpers.export_runs import HOSTILE, RUN, hostile_run
from hypothesis import given

from memfit.analysis import find_peak, trace_lifetimes
from memfit.ledger import EventKind, Ledger
from memfit.units import MIB
from memfit.views.exports.csv_tables import BLOCK_COLUMNS, EVENT_COLUMNS, write_blocks, write_events


def rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_a_block_has_a_row():
    found = rows(write_blocks(RUN))
    assert tuple(found[0]) == BLOCK_COLUMNS
    assert found[3] == {
        "block": "3",
        "device": "cuda:0",
        "stream": "7",
        "category": "activation",
        "op": "y",
        "module": "layers.0",
        "name": "",
        "phase": "forward",
        "step": "0",
        "bytes": str(30 * MIB),
        "birth_event": "6",
        "birth_ns": "6000",
        "death_event": "14",
        "death_ns": "14000",
    }
    assert found[4]["name"] == "layers.0.g"
    assert found[4]["death_event"] == found[4]["death_ns"] == ""


def test_an_event_has_a_row():
    found = rows(write_events(RUN))
    assert tuple(found[0]) == EVENT_COLUMNS
    assert [row["kind"] for row in found] == [EventKind(kind).name.lower() for kind in RUN.events.kind]
    assert found[6] == {
        "event": "6",
        "time_ns": "6000",
        "step": "0",
        "kind": "alloc",
        "device": "cuda:0",
        "block": "3",
        "category": "activation",
        "op": "y",
        "module": "layers.0",
        "phase": "forward",
        "change": str(12 * MIB),
        "in_use": str(19 * MIB),
    }
    assert (found[4]["kind"], found[4]["module"], found[4]["phase"], found[4]["change"]) == ("enter", "layers.0", "forward", "")


@given(ledgers)
def test_the_columns_add_up(run: Ledger):
    blocks, events = rows(write_blocks(run)), rows(write_events(run))
    assert [int(row["bytes"]) for row in blocks] == [life.size_bytes for life in trace_lifetimes(run)]
    assert len(events) == len(run.events)
    for number, device in enumerate(run.devices):
        here = [row for row in events if row["change"] and row["device"].removeprefix("'") == device.name]
        assert max((int(row["in_use"]) for row in here), default=0) == find_peak(run, number).size_bytes
        assert sum(int(row["change"]) for row in here) == (int(here[-1]["in_use"]) if here else 0)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("write", [write_blocks, write_events])
def test_no_cell_is_a_formula_and_no_name_breaks_a_row(name, write):
    run = hostile_run(name)
    found = rows(write(run))
    assert len(found) == (len(run.blocks) if write is write_blocks else len(run.events))
    for row in found:
        for cell in row.values():
            assert cell.isprintable()
            assert not cell.startswith(("=", "+", "@", "\t", "\r"))
            assert not cell.startswith("-") or cell == "-1"
    if name.isprintable():
        assert name in found[0]["module"] or name in found[0]["op"]
