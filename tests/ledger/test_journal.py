"""A journal is a readable ledger at every moment of its life, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memfit.errors import LedgerFormatError
from memfit.ledger import Ledger, LedgerBuilder, Phase
from memfit.ledger import builder as builder_module
from memfit.ledger.journal import Journal
from memfit.ledger.storage import MAGIC


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.memfit"


def write_part(builder: LedgerBuilder, name: str) -> Ledger:
    """A few events, flushed as one frame; gives the ledger so far."""
    scope = builder.enter(Phase.FORWARD, builder.module(name, "Linear"))
    block = builder.alloc(1024, builder.device("cpu"), builder.string(f"op of {name}"), scope)
    builder.exit(scope)
    builder.free(block)
    return builder.build()


def test_it_is_readable_from_the_start(path: Path):
    journal = Journal(path)
    loaded = Ledger.load(path).check()
    journal.close()
    assert len(loaded.events) == 0
    assert "the run goes on" in loaded.info.problem
    assert "process ended before the recording was closed" in Ledger.load(path).info.problem


def test_closing_replaces_it_by_the_finished_ledger(path: Path):
    builder = LedgerBuilder(journal=Journal(path))
    write_part(builder, "a")
    finished = builder.close()
    assert not path.read_bytes().startswith(MAGIC)
    assert Ledger.load(path).same_as(finished)
    assert finished.info.complete
    assert list(path.parent.iterdir()) == [path], "no temporary file may stay behind"


def test_its_own_problem_is_kept(path: Path):
    builder = LedgerBuilder(journal=Journal(path))
    builder.mark_incomplete("the recorder failed")
    builder.flush()
    assert Ledger.load(path).info.problem == "the recorder failed"
    builder.close()


def test_looking_at_the_ledger_loses_nothing(path: Path):
    builder = LedgerBuilder(journal=Journal(path))
    builder.alloc(8, builder.device("cpu"), builder.string("x"))
    seen = builder.build()
    builder.step()
    builder.flush()
    loaded = Ledger.load(path).check()
    builder.close()
    assert len(seen.events) == 1
    assert len(loaded.events) == 2


def test_flushing_is_due_after_many_events_or_some_time(path: Path, monkeypatch: pytest.MonkeyPatch):
    builder = LedgerBuilder(journal=Journal(path))
    builder.step()
    builder.flush_if_due()
    assert len(Ledger.load(path).events) == 0
    monkeypatch.setattr(builder_module, "FLUSH_NS", 0)
    builder.flush_if_due()
    assert len(Ledger.load(path).events) == 1
    monkeypatch.setattr(builder_module, "FLUSH_NS", 10**18)
    monkeypatch.setattr(builder_module, "FLUSH_EVENTS", 1)
    builder.step()
    builder.flush_if_due()
    assert len(Ledger.load(path).events) == 2
    builder.close()


def test_truncated_anywhere_in_its_last_frame_it_holds_the_frames_before(path: Path):
    builder = LedgerBuilder(journal=Journal(path))
    before = write_part(builder, "a")
    start = path.stat().st_size
    write_part(builder, "b")
    data = path.read_bytes()
    builder.close()
    for size in range(start, len(data)):
        path.write_bytes(data[:size])
        loaded = Ledger.load(path).check()
        assert replace(loaded, info=before.info).same_as(before), f"cut at byte {size}"


@pytest.mark.parametrize("flipped", [0x01, 0x80, 0xFF], ids=hex)
def test_a_changed_byte_in_a_middle_frame_is_an_error(path: Path, flipped: int):
    builder = LedgerBuilder(journal=Journal(path))
    start = path.stat().st_size
    write_part(builder, "a")
    stop = path.stat().st_size
    write_part(builder, "b")
    data = path.read_bytes()
    builder.close()
    for position in range(start, stop):
        path.write_bytes(data[:position] + bytes([data[position] ^ flipped]) + data[position + 1 :])
        with pytest.raises(LedgerFormatError, match=f"is damaged at byte {start}"):
            Ledger.load(path)


def test_truncated_in_its_first_frame_it_is_an_error(path: Path):
    Journal(path).close()
    data = path.read_bytes()
    for size in range(len(MAGIC), len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(LedgerFormatError, match="is damaged at its first frame"):
            Ledger.load(path)


KILLED_WHILE_WRITING = """
import sys
from memfit.ledger import LedgerBuilder
from memfit.ledger.journal import Journal
builder = LedgerBuilder(journal=Journal(sys.argv[1]))
device, op = builder.device("cpu"), builder.string("op")
print("ready", flush=True)
while True:
    builder.free(builder.alloc(1, device, op))
    builder.flush()
"""


def test_a_killed_process_leaves_a_readable_ledger(path: Path):
    process = subprocess.Popen([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        while path.stat().st_size < 20_000:
            pass
        process.send_signal(signal.SIGKILL)
    loaded = Ledger.load(path).check()
    assert len(loaded.events) > 0
    assert not loaded.info.complete
