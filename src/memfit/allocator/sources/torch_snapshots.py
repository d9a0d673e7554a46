"""A snapshot that PyTorch wrote: ``torch.cuda.memory._dump_snapshot(path)``, or ``_snapshot()`` pickled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

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
from memfit.allocator.sources.unpickling import unpickle_plain
from memfit.errors import TraceError

_ADVICE: Final = "Pass a file from torch.cuda.memory._dump_snapshot(), written after _record_memory_history() and the run"
_DEFAULT_POOL: Final = (0, 0)


def requests_from_snapshot(path: Path, data: bytes) -> Requests:
    """The requests in a snapshot, of the device with the longest history."""
    try:
        snapshot = unpickle_plain(data)
        traces = [list(trace) for trace in snapshot["device_traces"]]
        device = max(range(len(traces)), key=lambda i: len(traces[i]), default=0)
        if not traces or not traces[device]:
            raise TraceError(path, "has no history of allocations", _ADVICE)
        segments = sorted((s for s in snapshot["segments"] if s.get("device", 0) == device), key=lambda s: int(s["address"]))
        pools = _Pools(segments, traces[device])
        entries = _entries(traces[device], pools)
        return requests_from_entries(
            entries,
            _survivors(segments, pools),
            source="snapshot",
            alloc_conf=_alloc_conf(snapshot),
            warnings=_warnings(traces, device),
            pool_ids=tuple(pools.ids),
        )
    except ContradictionError as error:
        raise TraceError(path, f"contradicts itself: {error}", _ADVICE) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise TraceError(path, f"is not a snapshot of PyTorch's allocator, or is damaged ({error})", _ADVICE) from error


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
    numbers = {name: number for number, name in enumerate(ACTIONS)}
    return _table(
        (numbers.get(item["action"], OTHER), item.get("addr", 0), item.get("size", 0), item.get("stream", 0), pools.number(item))
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
    return str(settings.get("PYTORCH_CUDA_ALLOC_CONF", "")) or (
        "expandable_segments:True" if settings.get("expandable_segments") else ""
    )


def _warnings(traces: list[list[dict[str, Any]]], device: int) -> tuple[str, ...]:
    found = []
    others = [f"cuda:{i}" for i, trace in enumerate(traces) if trace and i != device]
    if others:
        found.append(f"counted on cuda:{device} only; the snapshot also has {', '.join(others)}")
    unknown = sorted({str(item["action"]) for item in traces[device]} - {*ACTIONS, *OTHER_ACTIONS})
    if unknown:
        found.append(f"entries memfit does not know were left out: {', '.join(unknown)}")
    return tuple(found)
