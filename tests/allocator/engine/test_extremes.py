"""Sizes, settings and addresses at the edge of what numbers hold: both engines say the same, and keep the laws."""

from __future__ import annotations

import ctypes
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.allocator_requests import asked, make_requests
from helpers.engine_corpus import CORPUS, read_case
from helpers.extreme_runs import ExtremeRun, extreme_runs
from hypothesis import given, settings

from memfit.allocator import AllocatorSettings, RequestKind, judge, parse_alloc_conf, replay, smallest_fit
from memfit.allocator.engine import NO_LIMIT, Outcome, Rules, native, prepare, python
from memfit.allocator.replaying import Replay
from memfit.errors import ConfigError, HostMemoryError
from memfit.hardware import find_gpu
from memfit.units import GIB, MIB, TIB

EXPANDABLE = parse_alloc_conf("expandable_segments:True")


@pytest.fixture(scope="module")
def engine() -> ctypes.CDLL:
    found = native.library()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def served(run: ExtremeRun) -> Replay:
    """By the engine in Python, which an error ends and not a signal."""
    return Replay(run.requests, AllocatorSettings(), run.prepared, run.rules, python.run(run.prepared, run.rules))


def freed_everything(run: ExtremeRun) -> ExtremeRun:
    """The same run, with what it still holds freed at its end."""
    requests = run.requests
    ended = requests.block[np.isin(requests.kind, (RequestKind.FREE, RequestKind.FREE_COMPLETED))]
    waits = np.setdiff1d(requests.block[requests.kind == RequestKind.FREE_REQUESTED], ended)
    holds = np.setdiff1d(np.arange(requests.num_blocks), np.concatenate((ended, waits)))
    block = np.concatenate((waits, holds))
    kind = np.repeat((RequestKind.FREE_COMPLETED, RequestKind.FREE), (len(waits), len(holds)))
    nothing = np.zeros(len(block), dtype=np.int64)
    last = {"kind": kind, "block": block, "event": np.full(len(block), len(requests))}
    names = ("kind", "block", "size", "stream", "pool", "event", "segment_address", "segment_size")
    columns = {name: np.append(getattr(requests, name), last.get(name, nothing)) for name in names}
    more = replace(requests, **columns, num_events=len(requests) + 1)
    how = AllocatorSettings()
    return ExtremeRun(more, prepare(more, how, use_recorded_addresses=True), run.rules, run.said)


def assert_lawful(replay: Replay) -> None:
    assert (replay.allocated >= 0).all()
    assert (replay.active >= replay.allocated).all()
    assert (replay.reserved >= replay.active).all()
    assert (replay.reserved <= min(replay.rules.capacity, replay.rules.limit)).all() or replay.rules.expandable
    assert (replay.reserved <= replay.rules.capacity).all()
    sizes = replay.outcome.block_bytes
    asked = replay.requests.size[replay.requests.kind == RequestKind.ALLOC]
    assert (sizes[sizes > 0] >= asked[: (sizes > 0).sum()]).all()


# -- the two engines ---------------------------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(extreme_runs())
def test_both_engines_say_the_same_and_keep_the_laws(engine, run: ExtremeRun):
    replay = served(run)
    other = native.run(engine, run.prepared, run.rules)
    for field in fields(Outcome):
        assert np.array_equal(getattr(replay.outcome, field.name), getattr(other, field.name)), field.name
    assert_lawful(replay)


@settings(max_examples=150)
@given(extreme_runs())
def test_nothing_is_in_use_once_everything_is_freed(run: ExtremeRun):
    replay = served(freed_everything(run))
    assert_lawful(replay)
    if replay.completes:
        assert (replay.allocated[-1:] == 0).all()
        assert (replay.active[-1:] == 0).all()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_broke_an_engine(path: Path):
    assert_lawful(served(read_case(path)))


# -- one request larger than any GPU -----------------------------------------------------------------------------------------


def test_a_request_beyond_the_range_of_a_segment_is_out_of_memory():
    run = replay(asked("a 30MiB; b 2TiB"), EXPANDABLE, capacity=80 * GIB, total_memory=80 * GIB)
    assert (run.completes, run.num_served) == (False, 1)
    assert run.out_of_memory is not None
    assert run.out_of_memory.asked == 2 * TIB


@pytest.mark.parametrize("size", ["1152GiB", "1153GiB", "2TiB", "200TiB"])
def test_where_there_is_enough_memory_there_is_enough_of_everything(size: str):
    requests = asked(f"a {size}; free a")
    assert replay(requests, EXPANDABLE).completes
    assert smallest_fit(requests, EXPANDABLE).capacity >= replay(requests).peak_reserved


def test_it_ends_as_a_verdict():
    verdict = judge(asked("a 2TiB"), find_gpu("H100-80GB"))
    assert not verdict.fits
    assert verdict.least_gpu is None
    assert verdict.smallest_fit == 2 * TIB


# -- numbers -----------------------------------------------------------------------------------------------------------------


def test_memory_beyond_all_counting_is_no_limit():
    rules = Rules.of(AllocatorSettings(max_split_bytes=2**90, max_non_split_rounding_bytes=2**90), 2**90, 2**90)
    numbers = [int(getattr(rules, field.name)) for field in fields(Rules)]
    assert max(numbers) == NO_LIMIT


def test_segments_that_no_address_holds_are_refused():
    assert AllocatorSettings(large_segment_bytes=2**48 - MIB)
    with pytest.raises(ConfigError, match="large_segment_size_mb must be less"):
        parse_alloc_conf("large_segment_size_mb:999999999999999999")


def test_addresses_come_to_an_end(engine):
    """Segments of 256 TiB, one after the other: the last has no address left, and the run is out of memory there."""
    rows = [row for i in range(20_000) for row in ((RequestKind.ALLOC, i, 2 * MIB, 0, 0), (1, i, 0, 0, 0), (4, -1, 0, 0, 0))]
    requests, how = make_requests(rows), AllocatorSettings(large_segment_bytes=2**48 - MIB)
    prepared, rules = prepare(requests, how, use_recorded_addresses=False), Rules.of(how)
    one, other = python.run(prepared, rules), native.run(engine, prepared, rules)
    assert one.num_done == other.num_done < len(rows)
    assert one.segment_log[:, 3].min() >= -NO_LIMIT


def test_a_machine_without_memory_is_told_so(monkeypatch: pytest.MonkeyPatch):
    class Exhausted:
        memfit_run = staticmethod(lambda *pointers: 1)
        memfit_release = staticmethod(lambda *pointers: None)

    how = AllocatorSettings()
    with pytest.raises(HostMemoryError, match="more memory than this machine has"):
        native.run(Exhausted(), prepare(asked("a 1MiB"), how, use_recorded_addresses=False), Rules.of(how))
