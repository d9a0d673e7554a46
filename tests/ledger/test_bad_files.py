"""Files that are no ledgers: each is refused with a ``LedgerFormatError`` that says what to do, and none does anything."""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.arbitrary_ledgers import play, recordings
from hypothesis import given
from hypothesis import strategies as st

from memfit.analysis import build_report
from memfit.errors import LedgerError, LedgerFormatError
from memfit.ledger import Ledger, LedgerBuilder, Work, WorkKind
from memfit.ledger.journal import Journal
from memfit.ledger.storage import MAGIC
from memfit.testing import ledger

SAMPLE = replace(
    ledger("alloc 4KiB parameter layers.0.w; step; enter forward layers.0; alloc 1KiB x; resize x 2KiB; exit; free x"),
    work=Work.from_rows([-1, 0, int(WorkKind.COMMUNICATION), 0, 0, 100, 200, 100, 1]),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.memfit"


def assert_refused(path: Path | str, problem: str, advice: str) -> None:
    with pytest.raises(LedgerFormatError, match=problem) as caught:
        Ledger.load(path)
    assert advice in caught.value.advice
    assert str(caught.value).startswith(str(path))


def read_parts(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The columns and the metadata of a good file."""
    SAMPLE.save(path)
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return safetensors.numpy.load(data), json.loads(data[8 : 8 + length])["__metadata__"]


def write_with_words(path: Path, **changes: Any) -> None:
    """A good file but for some of its words."""
    columns, metadata = read_parts(path)
    words = json.loads(metadata["words"]) | changes
    safetensors.numpy.save_file(columns, path, metadata | {"words": json.dumps(words)})


def write_with_columns(path: Path, **changes: np.ndarray | None) -> None:
    """A good file but for some of its columns, named like ``events__kind``; ``None`` leaves one out."""
    columns, metadata = read_parts(path)
    columns |= {name.replace("__", "."): values for name, values in changes.items()}
    safetensors.numpy.save_file({name: values for name, values in columns.items() if values is not None}, path, metadata)


# -- not there, not a file, not a ledger -------------------------------------------------------------------------------------


def test_a_missing_file(path: Path):
    assert_refused(path, "cannot be read", "Check the path")


def test_a_directory(tmp_path: Path):
    assert_refused(tmp_path, "cannot be read", "Check the path")


def test_a_path_that_cannot_be():
    assert_refused("run\0memfit", "cannot be read", "Check the path")


def test_an_empty_file(path: Path):
    path.touch()
    assert_refused(path, "is empty", "Copy it again")


@given(st.binary(min_size=1, max_size=300).filter(lambda data: not data.startswith(MAGIC)))
def test_random_bytes(tmp_path: Path, data: bytes):
    (tmp_path / "noise").write_bytes(data)
    assert_refused(tmp_path / "noise", "not a ledger", "Pass a file that memfit wrote")


@given(st.binary(max_size=300))
def test_random_bytes_that_claim_to_be_a_journal(tmp_path: Path, data: bytes):
    (tmp_path / "noise").write_bytes(MAGIC + data)
    assert_refused(tmp_path / "noise", "is damaged", "record the run again")


def test_a_foreign_safetensors_file(path: Path):
    safetensors.numpy.save_file({"weight": np.zeros(3)}, path)
    assert_refused(path, "but not a ledger", "Pass a file that memfit wrote")


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_a_pickle_is_not_performed(path: Path, tmp_path: Path):
    trace = tmp_path / "performed"
    bomb = pickle.dumps(Bomb(trace))
    path.write_bytes(bomb)
    assert_refused(path, "not a ledger", "Pass a file that memfit wrote")
    assert not trace.exists()
    pickle.loads(bomb)
    assert trace.exists(), "the pickle is harmless, so the test proves nothing"


# -- damaged -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9, 0.99], ids="kept {:.0%}".format)
@pytest.mark.parametrize("region", ["length", "header", "columns"])
def test_a_truncated_file(path: Path, region: str, fraction: float):
    SAMPLE.save(path)
    data = path.read_bytes()
    header_end = 8 + struct.unpack_from("<Q", data)[0]
    start, stop = {"length": (1, 8), "header": (8, header_end), "columns": (header_end, len(data))}[region]
    path.write_bytes(data[: start + int((stop - start) * fraction)])
    assert_refused(path, "is not a ledger", "copy it again")


@given(recordings, st.data())
def test_a_changed_file_is_refused_or_can_be_shown(tmp_path: Path, recording, data):
    path = tmp_path / "run.memfit"
    play(recording).save(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        report = build_report(Ledger.load(path).check())
    except LedgerError:
        return
    assert json.dumps(report.to_json())


# -- versions ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        ("2", "pip install --upgrade memfit"),
        ("999999999", "pip install --upgrade memfit"),
        ("0", "record the run again"),
        ("", "record the run again"),
        ("one", "record the run again"),
        ("²", "record the run again"),
        ("9" * 5000, "record the run again"),
        ("-1", "record the run again"),
    ],
)
def test_another_format_version(path: Path, version: str, advice: str):
    columns, metadata = read_parts(path)
    safetensors.numpy.save_file(columns, path, metadata | {"version": version})
    assert_refused(path, "ledger format version", advice)


def test_no_format_version(path: Path):
    columns, metadata = read_parts(path)
    del metadata["version"]
    safetensors.numpy.save_file(columns, path, metadata)
    assert_refused(path, "ledger format version", "record the run again")


# -- words -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["", "not JSON", "[]", "3", "null", '"words"', "{}", "[" * 100_000, '{"strings":' * 100_000, '{"strings": NaN}'],
    ids=["empty", "no JSON", "list", "number", "null", "string", "object", "deep lists", "deep objects", "NaN"],
)
def test_metadata_that_is_not_ours(path: Path, words: str):
    columns, metadata = read_parts(path)
    safetensors.numpy.save_file(columns, path, metadata | {"words": words})
    assert_refused(path, "unreadable metadata", "record the run again")


def test_no_words(path: Path):
    columns, metadata = read_parts(path)
    del metadata["words"]
    safetensors.numpy.save_file(columns, path, metadata)
    assert_refused(path, "unreadable metadata", "record the run again")


@pytest.mark.parametrize("strings", [None, 3, [1], [None], [["x"]]], ids=str)
def test_strings_of_wrong_types(path: Path, strings: Any):
    write_with_words(path, strings=strings)
    assert_refused(path, "unreadable metadata", "record the run again")


@pytest.mark.parametrize(
    "device",
    [
        None,
        "cpu",
        {},
        {"name": 3},
        {"name": None, "granularity": 1},
        {"name": "cpu", "granularity": "1"},
        {"name": "cpu", "granularity": 0},
        {"name": "cpu", "granularity": -512},
        {"name": "cpu", "granularity": 10**30},
        {"name": "cpu", "granularity": 1.5},
        {"name": "cpu", "colour": "red"},
    ],
    ids=str,
)
def test_devices_of_wrong_types(path: Path, device: Any):
    write_with_words(path, devices=[device])
    assert_refused(path, "unreadable metadata", "record the run again")


@pytest.mark.parametrize(
    "info",
    [
        None,
        [],
        "measured",
        {"source": 3},
        {"versions": []},
        {"versions": {"torch": 2}},
        {"rank": "0"},
        {"world_size": None},
        {"problem": ["x"]},
        {"assumptions": 3},
        {"assumptions": [3]},
    ],
    ids=str,
)
def test_info_of_wrong_types(path: Path, info: Any):
    write_with_words(path, info=info)
    assert_refused(path, "unreadable metadata", "record the run again")


def test_a_file_without_what_streams_did_is_one_of_an_older_memfit(path: Path):
    write_with_columns(path, **{f"work__{name}": None for name in Work.dtypes()})
    assert len(Ledger.load(path).check().work) == 0


def test_a_table_that_is_not_known_is_of_a_later_memfit_and_is_left_out(path: Path):
    write_with_columns(path, later__column=np.arange(3))
    assert Ledger.load(path).same_as(SAMPLE)


def test_info_from_a_later_memfit_may_say_more(path: Path):
    write_with_words(path, info={"source": "predicted", "weather": "fine"})
    assert Ledger.load(path).info.source == "predicted"


# -- columns -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint64, np.complex64])
def test_wrong_dtypes(path: Path, dtype: type[np.generic]):
    write_with_columns(path, events__subject=SAMPLE.events.subject.astype(dtype))
    assert_refused(path, "columns that do not fit", "record the run again")


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F4"])
def test_dtypes_that_numpy_does_not_have(path: Path, dtype: str):
    header = {"__metadata__": {"format": "memfit-ledger"}, "events.kind": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    assert_refused(path, "not a ledger", "Pass a file that memfit wrote")


def test_a_missing_column(path: Path):
    write_with_columns(path, blocks__stream=None)
    assert_refused(path, "columns that do not fit", "record the run again")


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c[:0], lambda c: np.append(c, c)], ids=["short", "none", "long"])
def test_ragged_columns(path: Path, change):
    write_with_columns(path, events__size=change(SAMPLE.events.size))
    assert_refused(path, "differ in length", "record the run again")


@pytest.mark.parametrize("shape", [(), (1, -1), (-1, 1)], ids=str)
def test_columns_that_are_not_columns(path: Path, shape: tuple[int, ...]):
    size = np.zeros(shape, dtype=np.int64) if shape == () else SAMPLE.events.size.reshape(shape)
    write_with_columns(path, events__size=size)
    assert_refused(path, "columns that do not fit", "record the run again")


@pytest.mark.parametrize("value", [-2, -(2**31), 10**6, 2**31 - 1])
@pytest.mark.parametrize(
    "column",
    [
        "blocks.device",
        "blocks.op",
        "blocks.scope",
        "scopes.module",
        "scopes.parent",
        "modules.path",
        "modules.kind",
        "modules.parent",
        "roles.block",
        "roles.module",
        "roles.name",
        "work.group",
        "work.module",
        "work.op",
    ],
)
def test_references_outside_their_table(path: Path, column: str, value: int):
    table, _, name = column.partition(".")
    values = getattr(getattr(SAMPLE, table), name).copy()
    values[0] = value
    write_with_columns(path, **{f"{table}__{name}": values})
    assert_refused(path, f"{column} points outside", "record the run again")


@pytest.mark.parametrize("column", ["events.kind", "scopes.phase", "roles.role", "work.kind"])
def test_words_outside_their_list(path: Path, column: str):
    table, _, name = column.partition(".")
    values = getattr(getattr(SAMPLE, table), name).copy()
    values[0] = 200
    write_with_columns(path, **{f"{table}__{name}": values})
    assert_refused(path, f"{column} points outside", "record the run again")


@pytest.mark.parametrize("column", ["blocks.device", "blocks.op", "modules.path", "modules.kind", "roles.block", "work.op"])
def test_references_that_must_be_there(path: Path, column: str):
    table, _, name = column.partition(".")
    values = getattr(getattr(SAMPLE, table), name).copy()
    values[0] = -1
    write_with_columns(path, **{f"{table}__{name}": values})
    assert_refused(path, f"{column} points outside", "record the run again")


def test_sizes_that_overflow_break_a_law(path: Path):
    write_with_columns(path, events__size=np.full(len(SAMPLE.events), 2**63 - 1))
    with pytest.raises(LedgerError, match="breaks its own laws"):
        Ledger.load(path).check()


# -- made to take long, or much memory ---------------------------------------------------------------------------------------


def test_more_devices_than_a_run_can_have(path: Path):
    devices = [{"name": f"cuda:{number}", "granularity": 512} for number in range(2000)]
    write_with_words(path, devices=devices)
    assert_refused(path, "2000 devices, more than the 256", "record the run again")
    write_with_words(path, devices=devices[:256])
    assert Ledger.load(path).check()


@pytest.mark.parametrize(("depth", "fine"), [(400, True), (20_000, False)])
def test_modules_deeper_than_any_model_has(path: Path, depth: int, fine: bool):
    builder = LedgerBuilder()
    parent = -1
    for number in range(depth):
        parent = builder.module(f"m{number}", "Module", parent)
    builder.build().save(path)
    if fine:
        assert Ledger.load(path).check()
    else:
        assert_refused(path, "more than 500 deep", "record the run again")


def test_more_columns_than_a_ledger_has(path: Path):
    write_with_columns(path, **{f"more__{number}": np.zeros(0) for number in range(101)})
    assert_refused(path, "columns", "copy it again")


def test_words_that_would_take_gigabytes(path: Path, monkeypatch: pytest.MonkeyPatch):
    write_with_words(path, strings=["x" * 40_000])
    monkeypatch.setenv("MEMFIT_MAX_MEMORY", "1MiB")
    assert_refused(path, "reading its words would take", "MEMFIT_MAX_MEMORY=1GiB")


def test_words_in_many_frames_are_counted_together(path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(path)
    for _ in range(10):
        journal.append({}, {"strings": ["x" * 40_000], "devices": [], "info": {}})
    journal.close()
    monkeypatch.setenv("MEMFIT_MAX_MEMORY", "4MiB")
    assert_refused(path, "reading its words would take", "MEMFIT_MAX_MEMORY=1GiB")


def test_a_header_that_is_deeper_than_python_goes(path: Path):
    header = b'{"__metadata__":' + b"[" * 100_000
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert_refused(path, "not a ledger", "copy it again")
