"""The log that PyTorch's allocator would have written while it served a run: the way back of ``sources/entries.py``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.allocator.engine.outcome import SegmentChange
from memfit.allocator.engine.python import AllocatorRun
from memfit.allocator.replaying import Replay
from memfit.allocator.requests import RequestKind
from memfit.allocator.segments import SegmentState, segments_of
from memfit.allocator.sources.entries import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Entries,
)
from memfit.ledger.schema import Array

_SEGMENT_ACTIONS: dict[int, int] = {
    SegmentChange.ALLOC: SEGMENT_ALLOC,
    SegmentChange.FREE: SEGMENT_FREE,
    SegmentChange.MAP: SEGMENT_MAP,
    SegmentChange.UNMAP: SEGMENT_UNMAP,
}


@dataclass(frozen=True, eq=False)
class AllocatorLog:
    """A log, and what it leads to."""

    entries: Entries
    request: Array
    """Per entry: the request that caused it."""
    block: Array
    """Per entry: the program's number for the block, -1 if it is about a segment."""
    segments: list[SegmentState]
    """After the last entry."""


def write_log(replay: Replay) -> AllocatorLog:
    """Serves the requests of ``replay`` once more, one by one, and notes where everything lies."""
    writer = _LogWriter(replay)
    for request, (kind, block) in enumerate(zip(replay.requests.kind.tolist(), replay.requests.block.tolist(), strict=True)):
        if request == replay.num_served:
            break
        writer.serve(request, kind, block)
    return writer.log()


class _LogWriter:
    def __init__(self, replay: Replay) -> None:
        requests = replay.requests
        allocates = requests.kind == RequestKind.ALLOC
        asked = np.zeros(requests.num_blocks, dtype=np.int64)
        asked[requests.block[allocates]] = requests.size[allocates]
        self._asked: list[int] = asked.tolist()
        self._run = AllocatorRun(replay.prepared, replay.rules)
        self._home: dict[int, tuple[int, int, int]] = {}
        """Of each block in use or pending: address, stream, pool."""
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._num_synced = self._num_segment_rows = 0

    def serve(self, request: int, kind: int, block: int) -> None:
        self._run.serve(request + 1)
        self._note_completed(request)
        self._note_segments(request)
        if kind == RequestKind.ALLOC:
            found = self._run.blocks[block]
            assert found is not None
            self._home[block] = (found.address, found.home.stream, found.home.pool)
            self._note(request, ALLOC, block)
        elif kind in (RequestKind.FREE, RequestKind.FREE_REQUESTED):
            self._note(request, FREE_REQUESTED, block)
        if kind in (RequestKind.FREE, RequestKind.FREE_COMPLETED) and block in self._home:
            self._note(request, FREE_COMPLETED, block)
            del self._home[block]

    def log(self) -> AllocatorLog:
        table = np.array(self._rows, dtype=np.int64).reshape(-1, 7)
        request, action, address, size, stream, pool, block = table.T
        entries = Entries(action=action, address=address, size=size, stream=stream, pool=pool)
        return AllocatorLog(entries, request, block, segments_of(self._run, self._asked))

    def _note(self, request: int, action: int, block: int) -> None:
        address, stream, pool = self._home[block]
        self._rows.append((request, action, address, self._asked[block], stream, pool, block))

    def _note_completed(self, request: int) -> None:
        """The pending frees that the allocator waited for to get memory."""
        synced = self._run.allocator.synced
        for _, block in synced[self._num_synced :]:
            self._note(request, FREE_COMPLETED, block)
            del self._home[block]
        self._num_synced = len(synced)

    def _note_segments(self, request: int) -> None:
        rows, free_lists = self._run.allocator.segment_log, self._run.allocator.free_lists
        for _, change, number, address, size in rows[self._num_segment_rows :]:
            if change in _SEGMENT_ACTIONS:
                home = free_lists[number]
                self._rows.append((request, _SEGMENT_ACTIONS[change], address, size, home.stream, home.pool, -1))
        self._num_segment_rows = len(rows)
