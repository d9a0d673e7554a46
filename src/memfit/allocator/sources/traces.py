"""An allocator's log as ``.npz``: the columns of ``torch.cuda.memory._snapshot()["device_traces"][0]``.

::

    actions   the names of actions          addr, size, stream   of each entry
    action    each entry's, by index        peak_allocated, peak_reserved   what the run's own allocator counted, if it is there
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from memfit.allocator.requests import Requests
from memfit.allocator.sources.entries import (
    ALLOC,
    CODES,
    OTHER,
    ContradictionError,
    Entries,
    requests_from_entries,
)
from memfit.allocator.sources.torch_snapshots import warn_of_actions
from memfit.errors import TraceError
from memfit.ledger.schema import Array
from memfit.reading import RefusedFileError, demand_memory

_COLUMNS: Final = ("action", "addr", "size", "stream")
_PEAKS: Final = ("peak_allocated", "peak_reserved")
_BYTES_PER_BYTE: Final = 13
"""What a byte of a column takes in memory while the log is worked out, at most."""
_MOST_ARRAYS: Final = 100
_MOST_ACTIONS: Final = 1000
_ADVICE: Final = "Write it again from torch.cuda.memory._snapshot(), with the arrays actions, action, addr, size and stream"


def requests_from_trace(path: Path, data: bytes) -> Requests:
    """The requests in a trace; ``TraceError`` if it is not one, or contradicts itself."""
    arrays = _read_arrays(path, data)
    names = [str(name) for name in arrays["actions"]]
    number = np.array([CODES.get(name, OTHER) for name in names], dtype=np.int64)
    entries = Entries(
        action=number[arrays["action"]],
        address=arrays["addr"],
        size=arrays["size"],
        stream=arrays["stream"],
        pool=np.zeros(len(arrays["action"]), dtype=np.int64),
    )
    try:
        return requests_from_entries(
            entries,
            survivors=entries.where(slice(0), ALLOC),
            source="trace",
            alloc_conf="expandable_segments:True" if "segment_map" in names else "",
            recorded_peaks={name: int(arrays[name]) for name in _PEAKS if name in arrays},
            oddities=warn_of_actions(set(names)),
        )
    except ContradictionError as error:
        raise TraceError(path, f"contradicts itself: {error}", _ADVICE) from error


def _read_arrays(path: Path, data: bytes) -> dict[str, Array]:
    arrays = _unpack(path, data)
    missing = [name for name in ("actions", *_COLUMNS) if name not in arrays]
    if missing:
        raise TraceError(path, f"is an .npz file without {', '.join(missing)}", _ADVICE)
    return arrays | _checked(path, arrays)


def _unpack(path: Path, data: bytes) -> dict[str, Array]:
    wanted = {"actions", *_COLUMNS, *_PEAKS}
    try:
        if data.count(b"PK\x01\x02") > _MOST_ARRAYS:
            raise ValueError(f"it holds more than {_MOST_ARRAYS} files")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            demand_memory(_BYTES_PER_BYTE * sum(member.file_size for member in archive.infolist()), "unpacking it")
            for member in archive.infolist():
                if member.filename.removesuffix(".npy") in wanted:
                    _check_size(archive, member)
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {name: file[name] for name in wanted & set(file.files)}
    except RefusedFileError as error:
        raise TraceError(path, error.problem, error.advice) from error
    except Exception as error:  # a damaged archive can raise nearly anything
        raise TraceError(path, f"is not an allocator trace, or is damaged ({error})", _ADVICE) from error


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """An array says how large it is before its numbers come: that must be what is there, or room would be made for anything."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    count = math.prod(shape)
    if max(count, count * dtype.itemsize) > member.file_size:
        raise ValueError(f"{member.filename[:100]} is said to be larger than it is")


def _checked(path: Path, arrays: dict[str, Array]) -> dict[str, Array]:
    """The columns as 64-bit numbers, all of one length, every action with a name; the peaks as single numbers."""
    columns = {name: arrays[name] for name in _COLUMNS}
    actions = arrays["actions"]
    if any(column.ndim != 1 or column.dtype.kind not in "iu" for column in columns.values()) or actions.ndim != 1:
        raise TraceError(path, "has columns that are not plain lists of numbers", _ADVICE)
    if len({len(column) for column in columns.values()}) > 1:
        raise TraceError(path, "has columns of different lengths", _ADVICE)
    if any(len(column) and int(column.max()) >= 2**63 for column in columns.values()):
        raise TraceError(path, "has numbers that do not fit in 63 bits", _ADVICE)
    if len(actions) > _MOST_ACTIONS:
        raise TraceError(path, f"has more than {_MOST_ACTIONS} kinds of actions", _ADVICE)
    action = columns["action"]
    if len(action) and not 0 <= int(action.min()) <= int(action.max()) < len(actions):
        raise TraceError(path, "has an action without a name", _ADVICE)
    if any(arrays[name].ndim != 0 or arrays[name].dtype.kind not in "iu" for name in _PEAKS if name in arrays):
        raise TraceError(path, "has peaks that are not single numbers", _ADVICE)
    return {name: column.astype(np.int64) for name, column in columns.items()}
