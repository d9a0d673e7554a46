"""An allocator's log as ``.npz``: the columns of ``torch.cuda.memory._snapshot()["device_traces"][0]``.

::

    actions   the names of actions          addr, size, stream   of each entry
    action    each entry's, by index        peak_allocated, peak_reserved   what the run's own allocator counted, if it is there
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from memfit.allocator.requests import Requests
from memfit.allocator.sources.entries import (
    ACTIONS,
    ALLOC,
    OTHER,
    OTHER_ACTIONS,
    ContradictionError,
    Entries,
    requests_from_entries,
)
from memfit.errors import TraceError
from memfit.ledger.schema import Array

_COLUMNS: Final = ("action", "addr", "size", "stream")
_PEAKS: Final = ("peak_allocated", "peak_reserved")
_LARGEST_FILE: Final = 2**32
_ADVICE: Final = "Write it again from torch.cuda.memory._snapshot(), with the arrays actions, action, addr, size and stream"


def requests_from_trace(path: Path) -> Requests:
    """The requests in a trace; ``TraceError`` if it is not one, or contradicts itself."""
    arrays = _read_arrays(path)
    names = [str(name) for name in arrays["actions"]]
    unknown = sorted(set(names) - {*ACTIONS, *OTHER_ACTIONS})
    number = np.array([ACTIONS.index(name) if name in ACTIONS else OTHER for name in names], dtype=np.int64)
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
            warnings=(f"entries memfit does not know were left out: {', '.join(unknown)}",) if unknown else (),
        )
    except ContradictionError as error:
        raise TraceError(path, f"contradicts itself: {error}", _ADVICE) from error


def _read_arrays(path: Path) -> dict[str, Array]:
    arrays = _unpack(path)
    missing = [name for name in ("actions", *_COLUMNS) if name not in arrays]
    if missing:
        raise TraceError(path, f"is an .npz file without {', '.join(missing)}", _ADVICE)
    return arrays | _checked(path, arrays)


def _unpack(path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > _LARGEST_FILE:
            raise ValueError("it would unpack to more than 4 GiB")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in {"actions", *_COLUMNS, *_PEAKS} & set(file.files)}
    except Exception as error:  # a damaged archive can raise nearly anything
        raise TraceError(path, f"is not an allocator trace, or is damaged ({error})", _ADVICE) from error


def _checked(path: Path, arrays: dict[str, Array]) -> dict[str, Array]:
    """The columns as 64-bit numbers, all of one length, every action with a name; the peaks as single numbers."""
    columns = {name: arrays[name] for name in _COLUMNS}
    if any(column.ndim != 1 or column.dtype.kind not in "iu" for column in columns.values()) or arrays["actions"].ndim != 1:
        raise TraceError(path, "has columns that are not plain lists of numbers", _ADVICE)
    if len({len(column) for column in columns.values()}) > 1:
        raise TraceError(path, "has columns of different lengths", _ADVICE)
    if any(len(column) and int(column.max()) >= 2**63 for column in columns.values()):
        raise TraceError(path, "has numbers that do not fit in 63 bits", _ADVICE)
    action = columns["action"]
    if len(action) and not 0 <= int(action.min()) <= int(action.max()) < len(arrays["actions"]):
        raise TraceError(path, "has an action without a name", _ADVICE)
    if any(arrays[name].ndim != 0 or arrays[name].dtype.kind not in "iu" for name in _PEAKS if name in arrays):
        raise TraceError(path, "has peaks that are not single numbers", _ADVICE)
    return {name: column.astype(np.int64) for name, column in columns.items()}
