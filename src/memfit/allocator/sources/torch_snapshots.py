"""A snapshot that PyTorch wrote: ``torch.cuda.memory._dump_snapshot(path)``, or ``_snapshot()`` pickled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from memfit.allocator.requests import Requests
from memfit.allocator.sources.entries import (
    ACTIONS,
    ALLOC,
    CODES,
    OTHER,
    OTHER_ACTIONS,
    ContradictionError,
    Entries,
    requests_from_entries,
)
from memfit.allocator.sources.unpickling import unpickle_plain
from memfit.errors import TraceError
from memfit.reading import MAX_DEVICES, RefusedFileError

_ADVICE: Final = "Pass a file from torch.cuda.memory._dump_snapshot(), written after _record_memory_history() and the run"
_DEFAULT_POOL: Final = (0, 0)
_NUMBERS: Final = ("addr", "size", "stream", "device_free", "address", "total_size", "requested_size")
_NAMED_ACTIONS: Final = 10
"""How many unknown actions a warning names."""

Plain = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """The device with the longest history. Numbers are numbers and text is text; frames have not been looked at."""

    device: int
    trace: list[Plain]
    segments: list[Plain]
    """By address."""
    alloc_conf: str
    other_devices: list[int]
    """Those that have a history as well."""


def requests_from_snapshot(path: Path, data: bytes) -> Requests:
    """The requests in a snapshot, of the device with the longest history."""
    return requests_of_snapshot(path, read_snapshot(path, data))


def read_snapshot(path: Path, data: bytes) -> Snapshot:
    """What is in a file; ``TraceError`` if that is no snapshot."""
    try:
        plain = unpickle_plain(data)
        traces, segments = plain["device_traces"], plain["segments"]
        _demand(type(traces) is list and type(segments) is list, "its histories or segments are no list")
        _demand(len(traces) <= MAX_DEVICES, f"it has {len(traces)} devices")
        _demand(all(type(trace) is list for trace in traces), "a history is no list")
        device = max(range(len(traces)), key=lambda i: len(traces[i]), default=0)
        if not traces or not traces[device]:
            raise TraceError(path, "has no history of allocations", _ADVICE)
        others = [i for i, trace in enumerate(traces) if trace and i != device]
        return Snapshot(device, _checked_trace(traces[device]), _checked_segments(segments, device), _alloc_conf(plain), others)
    except RefusedFileError as error:
        raise TraceError(path, error.problem, error.advice) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise TraceError(path, f"is not a snapshot of PyTorch's allocator, or is damaged ({error})", _ADVICE) from error


def requests_of_snapshot(path: Path, snapshot: Snapshot) -> Requests:
    try:
        pools = _Pools(snapshot.segments, snapshot.trace)
        return requests_from_entries(
            _entries(snapshot.trace, pools),
            _survivors(snapshot.segments, pools),
            source="snapshot",
            alloc_conf=snapshot.alloc_conf,
            oddities=_oddities(snapshot),
            pool_ids=tuple(pools.ids),
        )
    except ContradictionError as error:
        raise TraceError(path, f"contradicts itself: {error}", _ADVICE) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise TraceError(path, f"is not a snapshot of PyTorch's allocator, or is damaged ({error})", _ADVICE) from error


# -- what is where it should be ----------------------------------------------------------------------------------------------


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _checked_trace(trace: list[Plain]) -> list[Plain]:
    for item in trace:
        _check_numbers(item)
        _demand(type(item["action"]) is str, "an action is no text")
        _check_pool(item.get("pool_id", _DEFAULT_POOL))
    return trace


def _checked_segments(segments: list[Plain], device: int) -> list[Plain]:
    """Those of a device. Each has blocks of its own: a list that stood in several would be walked again for each."""
    found = [segment for segment in segments if segment.get("device", 0) == device]
    for segment in found:
        _check_numbers(segment)
        _check_pool(segment.get("segment_pool_id", _DEFAULT_POOL))
        _demand(type(segment["blocks"]) is list, "the blocks of a segment are no list")
    _demand(len({id(segment["blocks"]) for segment in found}) == len(found), "two segments have the same blocks")
    for segment in found:
        for block in segment["blocks"]:
            _check_numbers(block)
            _demand(type(block["state"]) is str and type(block["size"]) is int, "a block has no state or no size")
    return sorted(found, key=lambda segment: int(segment["address"]))


def _check_numbers(item: Plain) -> None:
    _demand(type(item) is dict, "an entry is no dictionary")
    for name in _NUMBERS:
        _demand(type(item.get(name, 0)) is int, f"{name} is no whole number")
    _demand(type(item.get("frames", [])) is list, "frames are no list")


def _check_pool(pool: Any) -> None:
    _demand(type(pool) in (list, tuple) and len(pool) == 2 and all(type(part) is int for part in pool), "a pool has no name")


class _Pools:
    """Numbers for private pools. Entries name theirs since torch 2.12; before, the segment they lie in tells."""

    def __init__(self, segments: list[dict[str, Any]], trace: list[dict[str, Any]]) -> None:
        self._starts = [int(segment["address"]) for segment in segments]
        self._segments = segments
        named = (tuple(item["pool_id"]) for item in trace if "pool_id" in item)
        found = {*named, *(self._of_segment(segment) for segment in segments)} - {_DEFAULT_POOL}
        self.ids = [_DEFAULT_POOL, *sorted(found)]
        self._numbers = {pool: number for number, pool in enumerate(self.ids)}

    def number(self, item: dict[str, Any]) -> int:
        if "pool_id" in item:
            return self._numbers[tuple(item["pool_id"])]
        address = item.get("addr", 0)
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._starts[place] + self._segments[place]["total_size"]:
            return 0
        return self.of_segment(self._segments[place])

    def of_segment(self, segment: dict[str, Any]) -> int:
        return self._numbers[self._of_segment(segment)]

    @staticmethod
    def _of_segment(segment: dict[str, Any]) -> tuple[int, ...]:
        return tuple(segment.get("segment_pool_id", _DEFAULT_POOL))


def _entries(trace: list[dict[str, Any]], pools: _Pools) -> Entries:
    return _table(
        (CODES.get(item["action"], OTHER), item.get("addr", 0), item.get("size", 0), item.get("stream", 0), pools.number(item))
        for item in trace
    )


def _survivors(segments: list[dict[str, Any]], pools: _Pools) -> Entries:
    return _table(
        (ALLOC, address, block.get("requested_size") or block["size"], segment["stream"], pools.of_segment(segment))
        for segment in segments
        for address, block in _blocks(segment)
        if block["state"] != "inactive"
    )


def _blocks(segment: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The blocks of a segment with their addresses; they lie back to back."""
    address = segment["address"]
    for block in segment["blocks"]:
        yield address, block
        address += block["size"]


def _table(rows: Iterable[tuple[int, int, int, int, int]]) -> Entries:
    table = np.array(list(rows) or np.zeros((0, 5), dtype=np.int64))
    if table.dtype.kind not in "iu":
        raise TypeError("an address, size or stream is not a whole number of 64 bits")
    action, address, size, stream, pool = table.astype(np.int64).T
    return Entries(action=action, address=address, size=size, stream=stream, pool=pool)


def _alloc_conf(snapshot: dict[str, Any]) -> str:
    """What the snapshot says the run was set to; older ones only say whether segments were expandable."""
    settings = snapshot.get("allocator_settings", {})
    said = settings.get("PYTORCH_CUDA_ALLOC_CONF", "")
    _demand(type(said) is str, "its settings are no text")
    return said or ("expandable_segments:True" if settings.get("expandable_segments") else "")


def _oddities(snapshot: Snapshot) -> tuple[str, ...]:
    found = []
    others = ", ".join(f"cuda:{i}" for i in snapshot.other_devices)
    if others:
        found.append(f"counted on cuda:{snapshot.device} only; the snapshot also has {others}")
    return (*found, *warn_of_actions({item["action"] for item in snapshot.trace}))


def warn_of_actions(names: set[str]) -> tuple[str, ...]:
    """Says which actions memfit does not know, if there are such."""
    unknown = sorted(names - {*ACTIONS, *OTHER_ACTIONS})
    if not unknown:
        return ()
    more = f" and {len(unknown) - _NAMED_ACTIONS} more" if len(unknown) > _NAMED_ACTIONS else ""
    return (f"entries memfit does not know were left out: {', '.join(name[:100] for name in unknown[:_NAMED_ACTIONS])}{more}",)
