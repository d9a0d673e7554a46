"""Ledgers on disk.

::

    finished run    one safetensors file: a tensor per column ("events.kind"), everything else as JSON in its metadata
    while it runs   a journal: MAGIC, then frames of  length (u64) | its crc32 (u32) | crc32 of both (u32) | a safetensors file
                    with the new rows

Both live under the same name: a run writes a journal to ``run.memfit`` and replaces it by the finished file when it is over, so
that a process that dies leaves what it had flushed. There is no pickle anywhere, and every number read from a file is checked
against the tables before anything is indexed with it: a ledger from a stranger is safe to open.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy

from memfit.errors import LedgerFormatError
from memfit.ledger.run_info import RunInfo
from memfit.ledger.schema import (
    FORMAT,
    TABLES,
    VERSION,
    ActivityKind,
    Array,
    Category,
    Device,
    EventKind,
    Events,
    Modules,
    Phase,
    Table,
    WorkKind,
)
from memfit.reading import MAX_DEPTH, MAX_DEVICES, RefusedFileError, demand_memory, read_regular

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAGIC = b"memfit-journal-1\n"
_FRAME = struct.Struct("<QII")
_LENGTH = struct.Struct("<Q")
_MAX_GRANULARITY = 2**30
_MEMORY_PER_WORD_BYTE = 32
"""What a byte of JSON becomes in memory, at most: an empty list is two bytes there, and sixty here."""
_MOST_COLUMNS = 100
_NOT_A_LEDGER = "Pass a file that memfit wrote: run.memfit from `memfit.track(..., save_to=...)` or `ledger.save(...)`"
_DAMAGED = "Copy it again from where it was recorded, or record the run again"


class Contents:
    """What a file holds, before it is a ledger: tables by name, and the words."""

    def __init__(self) -> None:
        self.parts: dict[str, list[dict[str, Array]]] = {}
        self.strings: list[str] = []
        self.devices: list[Device] = []
        self.info = RunInfo()
        self.num_word_bytes = 0
        """What all parts together have in words."""

    def add(self, columns: dict[str, Array], words: dict[str, Any]) -> None:
        self.strings += words["strings"]
        self.devices += [_device(device) for device in words["devices"]]
        if len(self.devices) > MAX_DEVICES:
            raise ValueError(f"{len(self.devices)} devices, more than the {MAX_DEVICES} that a run can have")
        self.info = _info(words["info"])
        tables: dict[str, dict[str, Array]] = {}
        for key, values in columns.items():
            table, _, name = key.partition(".")
            tables.setdefault(table, {})[name] = values
        for table, named in tables.items():
            self.parts.setdefault(table, []).append(named)

    def table(self, kind: type[Table], *names: str) -> Table:
        """The rows of all parts under these names, in order; a ``KeyError`` or ``ValueError`` says what is off."""
        parts = [part for name in names or (kind.NAME,) for part in self.parts.get(name, [])]
        made = []
        for part in parts:
            columns = {name: part[name].astype(dtype, casting="safe", copy=False) for name, dtype in kind.dtypes().items()}
            if any(column.ndim != 1 for column in columns.values()) or len({len(c) for c in columns.values()}) > 1:
                raise ValueError(f"the columns of {kind.NAME} differ in length or shape")
            made.append(kind(**columns))
        return kind.concatenate(made)


def _device(data: dict[str, Any]) -> Device:
    device = Device(**data)
    if not isinstance(device.name, str) or not isinstance(device.granularity, int):
        raise TypeError("a device has a name or a granularity of the wrong type")
    if not 1 <= device.granularity <= _MAX_GRANULARITY:
        raise ValueError(f"a device has granularity {device.granularity}")
    return device


def _info(data: dict[str, Any]) -> RunInfo:
    info, usual = RunInfo.from_json(data), RunInfo()
    same = all(isinstance(getattr(info, field.name), type(getattr(usual, field.name))) for field in fields(RunInfo))
    are_numbers = all(type(value) in (int, float) for value in info.speed.values())
    if not same or not are_numbers or not all(isinstance(text, str) for text in _texts(info)):
        raise TypeError("the run's info has a value of the wrong type")
    return info


def _texts(info: RunInfo) -> tuple[Any, ...]:
    return (
        *info.versions,
        *info.versions.values(),
        *info.assumptions,
        *info.alarms,
        *info.notes,
        *info.asked,
        *info.speed,
        *_pairs(info.sources),
    )


def _pairs(texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        yield from (name, text)


_HEADER_SIZE = 8
"""Bytes at the beginning of a safetensors file that say how long its header is; the header is padded to a multiple of it."""


def _encode(tables: dict[str, Table], words: dict[str, Any]) -> bytes:
    columns = {
        f"{name}.{column}": np.ascontiguousarray(values)
        for name, table in tables.items()
        for column, values in table.columns().items()
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "words": json.dumps(words)}
    return _in_one_order(bytes(safetensors.numpy.save(columns, metadata=metadata)))


def _in_one_order(data: bytes) -> bytes:
    """The same file with its metadata sorted: safetensors writes them in any order, and equal runs have equal files."""
    end = _HEADER_SIZE + int.from_bytes(data[:_HEADER_SIZE], "little")
    header = json.loads(data[_HEADER_SIZE:end])
    text = json.dumps({"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_SIZE)
    return b"".join((len(text).to_bytes(_HEADER_SIZE, "little"), text, data[end:]))


def save(path: Path, tables: dict[str, Table], strings: tuple[str, ...], devices: tuple[Device, ...], info: RunInfo) -> None:
    """Writes a finished ledger, all or nothing: a crash leaves the old file or the new one."""
    words = {"strings": list(strings), "devices": [asdict(device) for device in devices], "info": info.to_json()}
    write_whole(path, _encode(tables, words))


def write_whole(path: Path, data: bytes) -> None:
    """All or nothing: a crash, or a disk that is full, leaves the old file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def frame(tables: dict[str, Table], words: dict[str, Any]) -> bytes:
    """One frame of a journal."""
    payload = _encode(tables, words)
    length, checksum = len(payload), zlib.crc32(payload)
    return _FRAME.pack(length, checksum, _header_checksum(length, checksum)) + payload


def _header_checksum(length: int, checksum: int) -> int:
    """Tells a damaged length from a frame that was cut short."""
    return zlib.crc32(struct.pack("<QI", length, checksum))


def load(path: Path) -> Contents:
    """Reads either kind of file; anything wrong with it is a ``LedgerFormatError`` that says what to do."""
    try:
        data = read_regular(path)
    except RefusedFileError as error:
        raise LedgerFormatError(path, error.problem, error.advice) from error
    contents = Contents()
    if data.startswith(MAGIC):
        _load_journal(path, data, contents)
    elif not data:
        raise LedgerFormatError(path, "is empty", _DAMAGED)
    else:
        _load_safetensors(path, data, contents)
    return contents


def _load_journal(path: Path, data: bytes, contents: Contents) -> None:
    position, num_frames = len(MAGIC), 0
    while position + _FRAME.size <= len(data):
        length, checksum, header_checksum = _FRAME.unpack_from(data, position)
        if _header_checksum(length, checksum) != header_checksum:
            raise LedgerFormatError(path, f"is damaged at byte {position}", _DAMAGED)
        start, end = position + _FRAME.size, position + _FRAME.size + length
        if end > len(data):
            break  # the process died while writing this frame
        payload = data[start:end]
        if zlib.crc32(payload) != checksum:
            if end == len(data):
                break
            raise LedgerFormatError(path, f"is damaged at byte {position}", _DAMAGED)
        _load_safetensors(path, payload, contents)
        position, num_frames = end, num_frames + 1
    if not num_frames:
        raise LedgerFormatError(path, "is damaged at its first frame", _DAMAGED)
    if contents.info.complete:
        contents.info = replace(contents.info, problem=RUNNING if is_being_written(path) else ENDED)


RUNNING: Final = "the run goes on; this is what it had written when the file was read"
ENDED: Final = "the process ended before the recording was closed; this is what it had flushed"
"""Why a journal is incomplete."""


def is_being_written(path: Path) -> bool:
    """Does a process hold the lock of a journal? False on file systems without locks."""
    if fcntl is None or not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EACCES)  # other errors: a file system without locks
    return False


def _load_safetensors(path: Path, data: bytes, contents: Contents) -> None:
    try:
        metadata = _metadata(data)
        columns = safetensors.numpy.load(data)
    except RefusedFileError as error:
        raise LedgerFormatError(path, error.problem, error.advice) from error
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        problem = "is truncated or is not a ledger" if len(data) > 8 else "is not a ledger"
        raise LedgerFormatError(path, f"{problem} ({error})", f"{_NOT_A_LEDGER}; if it is one, copy it again") from error
    if metadata.get("format") != FORMAT:
        raise LedgerFormatError(path, "is a safetensors file, but not a ledger", _NOT_A_LEDGER)
    version = metadata.get("version", "")
    if version != str(VERSION):
        newer = version.isascii() and version.isdigit() and len(version) < 10 and int(version) > VERSION
        advice = "Upgrade memfit: pip install --upgrade memfit" if newer else _DAMAGED
        raise LedgerFormatError(path, f"has ledger format version {version!r}, this memfit reads {VERSION}", advice)
    try:
        contents.num_word_bytes += len(metadata["words"])
        demand_memory(_MEMORY_PER_WORD_BYTE * contents.num_word_bytes, "reading its words")
        words = json.loads(metadata["words"])
        if not all(isinstance(text, str) for text in words["strings"]):
            raise TypeError("a name is not text")
        contents.add(columns, words)
    except RefusedFileError as error:
        raise LedgerFormatError(path, error.problem, error.advice) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerFormatError(path, f"has unreadable metadata ({type(error).__name__}: {error})", _DAMAGED) from error


def _metadata(data: bytes) -> dict[str, str]:
    """What stands before the columns; it says how many there are, before room is made for them."""
    if len(data) < _LENGTH.size:
        raise ValueError("it is cut short")
    (length,) = _LENGTH.unpack_from(data)
    demand_memory(_MEMORY_PER_WORD_BYTE * min(length, len(data)), "reading its words")
    header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    if not isinstance(header, dict):
        raise TypeError("its header is not an object")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise TypeError("metadata is not an object")
    if len(header) > _MOST_COLUMNS:
        raise ValueError(f"it has {len(header)} columns")
    return metadata


def validated_tables(path: Path, contents: Contents) -> dict[type[Table], Table]:
    """The tables of a file, every reference in them inside its table."""
    try:
        tables: dict[type[Table], Table] = {kind: contents.table(kind) for kind in TABLES}
        tables[Events] = contents.table(Events, "prelude", "events")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise LedgerFormatError(path, f"has columns that do not fit ({type(error).__name__}: {error})", _DAMAGED) from error
    counts = {kind.NAME: len(table) for kind, table in tables.items()}
    counts |= {"strings": len(contents.strings), "devices": len(contents.devices)}
    for (table, name), (target, optional) in _REFERENCES.items():
        values = getattr(next(t for k, t in tables.items() if table == k.NAME), name)
        limit = counts[target] if isinstance(target, str) else target
        if len(values) and (int(values.min()) < (-1 if optional else 0) or int(values.max()) >= limit):
            raise LedgerFormatError(path, f"is damaged: {table}.{name} points outside {target}", _DAMAGED)
    if _is_too_deep(tables[Modules].columns()["parent"]):
        raise LedgerFormatError(path, f"has modules in a circle, or more than {MAX_DEPTH} deep inside each other", _DAMAGED)
    return tables


def _is_too_deep(parent: Array) -> bool:
    above = parent
    for _ in range(MAX_DEPTH):
        above = above[above >= 0]
        if not len(above):
            return False
        above = parent[above]
    return True


_REFERENCES: dict[tuple[str, str], tuple[str | int, bool]] = {
    ("events", "kind"): (len(EventKind), False),
    ("blocks", "device"): ("devices", False),
    ("blocks", "op"): ("strings", False),
    ("blocks", "scope"): ("scopes", True),
    ("scopes", "phase"): (len(Phase), False),
    ("scopes", "module"): ("modules", True),
    ("scopes", "parent"): ("scopes", True),
    ("modules", "path"): ("strings", False),
    ("modules", "kind"): ("strings", False),
    ("modules", "parent"): ("modules", True),
    ("roles", "block"): ("blocks", False),
    ("roles", "role"): (len(Category), False),
    ("roles", "module"): ("modules", True),
    ("roles", "name"): ("strings", True),
    ("slack", "block"): ("blocks", False),
    ("returns", "block"): ("blocks", False),
    ("levels", "device"): ("devices", False),
    ("work", "group"): ("strings", True),
    ("work", "kind"): (len(WorkKind), False),
    ("work", "module"): ("modules", True),
    ("work", "op"): ("strings", False),
    ("activity", "kind"): (len(ActivityKind), False),
    ("activity", "batch"): ("strings", True),
}
"""Which column points where, and whether -1 may stand for nothing."""
