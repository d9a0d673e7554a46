"""The trace for Perfetto: what the trace event format asks for, and that it says what the analysis says."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from helpers.arbitrary_ledgers import ledgers
from helpers.export_runs import HOSTILE, PREDICTED, RUN, RUNS, hostile_run
from helpers.report_runs import timed
from hypothesis import given

from memfit.allocator import replay, requests_from_ledger
from memfit.analysis import find_peak, trace_categories
from memfit.ledger import Ledger, LedgerBuilder, Phase, RunInfo
from memfit.units import MIB
from memfit.views.exports.perfetto import write_trace

Event = dict[str, Any]

FIELDS = {"M": {"args"}, "X": {"dur", "cat"}, "C": {"args"}, "i": {"s"}}
"""Beyond name, ph, ts, pid and tid. From the Trace Event Format: metadata, complete, counter and instant events."""


def events_of(run: Ledger) -> list[Event]:
    trace = json.loads(write_trace(run))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    return trace["traceEvents"]


def check_format(events: list[Event]) -> None:
    """Every event has what its kind needs, time is never negative, counters count, and slices of a track nest."""
    for event in events:
        assert isinstance(event["name"], str)
        assert event["ph"] in FIELDS
        assert FIELDS[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["pid"] > 0
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    check_nesting(events)


def check_nesting(events: list[Event]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        spans = [(nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"])) for event in track]
        assert [begin for begin, _ in spans] == sorted(begin for begin, _ in spans)
        open_ends: list[int] = []
        for begin, end in spans:
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def nanoseconds(time: float) -> int:
    """As viewers count, who take microseconds as fractions."""
    return round(time * 1000)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_format(run: Ledger):
    check_format(events_of(run))


@given(ledgers)
def test_the_format_for_every_run(ledger: Ledger):
    check_format(events_of(ledger))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ph": "X", "name": "x", "ts": 0.5, "dur": 2, "pid": 1, "tid": 2, "cat": "c"},
        {"ph": "X", "name": "x", "ts": -1, "dur": 2, "pid": 1, "tid": 9, "cat": "c"},
        {"ph": "C", "name": "x", "ts": 0, "pid": 1, "tid": 0, "args": {"bytes": "3"}},
        {"ph": "B", "name": "x", "ts": 0, "pid": 1, "tid": 0},
    ],
    ids=["overlaps", "negative time", "text for a number", "unknown kind"],
)
def test_the_check_of_the_format_can_fail(wrong: Event):
    first = {"ph": "X", "name": "y", "ts": 0, "dur": 1, "pid": 1, "tid": 2, "cat": "c"}
    check_format([first])
    with pytest.raises(AssertionError):
        check_format([first, wrong])


def test_counters_follow_each_category():
    events = [event for event in events_of(RUN) if event["ph"] == "C"]
    for device, known in enumerate(RUN.devices):
        for category, timeline in trace_categories(RUN, device).items():
            counted = [event["args"]["bytes"] for event in events if event["name"] == f"{known.name} {category.label}"]
            assert counted == timeline.totals.tolist()
    in_use = [event["args"]["bytes"] for event in events if event["name"] == "cuda:0 in use"]
    assert max(in_use) == find_peak(RUN, 1 if RUN.devices[1].name == "cuda:0" else 0).size_bytes


def test_reserved_is_a_counter_too():
    events = [event for event in events_of(RUN) if event["name"] == "cuda:0 reserved"]
    assert [event["args"]["bytes"] // MIB for event in events] == [0, 20, 32, 62, 20, 22]
    assert max(event["args"]["bytes"] for event in events) == replay(requests_from_ledger(RUN, "cuda:0")).peak_reserved


def test_slices_are_steps_phases_and_modules():
    slices = [(event["name"], event["tid"], event["ts"], event["dur"]) for event in events_of(RUN) if event["ph"] == "X"]
    assert slices == [
        ("init", 1, 0, 2),
        ("step 0", 1, 2, 16),
        ("step 1", 1, 18, 1),
        ("forward", 2, 3, 6),
        ("backward", 2, 10, 6),
        ("forward", 3, 3, 6),
        ("layers.0", 3, 4, 4),
        ("backward", 3, 10, 6),
        ("layers.0", 3, 11, 4),
    ]
    module = next(event for event in events_of(RUN) if event["name"] == "layers.0")
    assert module["args"] == {"phase": "forward", "bytes in": 0, "bytes out": 12 * MIB, "class": "Module"}


def test_the_peak_is_marked():
    (mark,) = [event for event in events_of(RUN) if event["ph"] == "i" and "cuda:0" in event["name"]]
    assert mark["name"] == "peak of cuda:0: 40.00 MiB"


def test_a_prediction_has_no_clock_but_its_events():
    slow = replace(PREDICTED, events=replace(PREDICTED.events, time_ns=PREDICTED.events.time_ns * 1_000_003))
    assert write_trace(slow) == write_trace(PREDICTED)
    events = events_of(PREDICTED)
    assert max(event["ts"] for event in events) == len(PREDICTED.events) - 1
    name = next(event["args"]["name"] for event in events if event["name"] == "process_name")
    assert name == "predicted, rank 3 of 8 (one event is one microsecond)"
    assert {event["pid"] for event in events} == {4}


def test_a_measured_run_has_its_own_clock():
    slow = replace(RUN, events=replace(RUN.events, time_ns=RUN.events.time_ns * 7))
    assert max(event["ts"] for event in events_of(slow)) == 7 * (len(RUN.events) - 1)


def test_scopes_that_do_not_nest_are_on_tracks_of_their_own():
    builder = LedgerBuilder()
    first, second = builder.enter(Phase.FORWARD), builder.enter(Phase.BACKWARD)
    builder.exit(second)
    builder.exit(first)
    builder.device("cpu")
    nested = builder.build()
    order = [0, 1, 3, 2]  # a builder nests them; files of older releases may not
    ledger = replace(nested, events=replace(nested.events, subject=nested.events.subject[order]))
    tracks = {(event["name"], event["cat"]): event["tid"] for event in events_of(ledger) if event["ph"] == "X"}
    assert tracks["forward", "forward"] != tracks["backward", "backward"]
    assert tracks["forward", "phase"] == tracks["backward", "phase"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_can_only_be_read(name: str):
    events = events_of(hostile_run(name))
    check_format(events)
    assert all(event["name"].isprintable() for event in events)


def test_a_prediction_with_a_clock_is_drawn_over_it():
    times = [0, 5_000, 9_000]
    clock = iter([0, *times, *[9_000] * 20])
    builder = LedgerBuilder(RunInfo(source="predicted", clock="timed"), clock=lambda: next(clock))
    scope = builder.enter(Phase.FORWARD)
    builder.exit(scope)
    builder.step()
    trace = json.loads(write_trace(builder.build()))
    assert trace["otherData"]["clock"] == "predicted time"
    drawn = next(event for event in trace["traceEvents"] if event.get("cat") == "forward")
    assert (drawn["ts"], drawn["dur"]) == (0, 5)


def test_streams_are_tracks_of_their_own_with_real_durations():
    run = timed()
    events = events_of(run)
    check_format(events)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [name for track, name in sorted(tracks.items())][-3:] == ["default stream", "stream 4", "communication (mesh_dp)"]
    begin = next(event["ts"] for event in events if event["name"] == "step 1")
    slices = [
        (tracks[event["tid"]], event["name"], (event["ts"] - begin) / 1000, event["dur"] / 1000)
        for event in events
        if event["ph"] == "X" and "kernels" in event.get("args", {})
    ]
    assert slices == [
        ("default stream", "forward of layers.0.mlp", 1, 4),
        ("default stream", "forward of layers.1.mlp", 5, 4),
        ("default stream", "backward of layers.0.mlp", 20, 10),
        ("default stream", "optimizer", 31, 2),
        ("stream 4", "mm of layers.0.mlp", 0, 2),
        ("communication (mesh_dp)", "all_gather of layers.0.mlp", 2, 20),
    ]
    second = next(event for event in events if event["name"] == "forward of layers.1.mlp")
    expected = {"kind": "forward", "module": "layers.1.mlp", "most of it": "mm", "kernels": 2, "busy us": 2000}
    assert second["args"] == expected
    counters = {event["ts"] for event in events if event["ph"] == "C" and event["name"] == "cuda:0 in use"}
    assert counters == {0, *(run.events.time_ns[run.memory_events] / 1000).tolist()}


def test_without_a_clock_streams_have_no_place():
    run = timed()
    events = events_of(replace(run, info=replace(run.info, clock="")))
    assert not [event for event in events if "kernels" in event.get("args", {})]
