"""A PyTorch snapshot at the moment at which memory ran out.

::

    device_traces    alloc, free, ... , oom, alloc, free, ...        the last entry "oom" is the moment
    segments         what lay where when the snapshot was taken: after the moment, so what came since is undone, last first

A snapshot knows no categories and no modules, but it may know the stack of each allocation: the innermost line outside PyTorch
stands for the module. Nothing in the file is executed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from memfit.allocator import BlockState, RequestKind, Requests, SegmentState, recorded_settings
from memfit.allocator import replay as replay_requests
from memfit.allocator.settings import MIN_BLOCK, SMALL_SEGMENT
from memfit.allocator.sizing import largest_request
from memfit.allocator.sources.torch_snapshots import Snapshot, read_snapshot, requests_of_snapshot
from memfit.errors import ConfigError, TraceError
from memfit.explain.live_blocks import NUM_BLOCKS, HeldBlock, Holding, Holdings
from memfit.explain.scene import Scene
from memfit.hardware import find_gpu

NO_STACK: Final = ""
_ADVICE: Final = "Call torch.cuda.memory._record_memory_history() before the run, and _dump_snapshot() after the error"


def scene_from_snapshot(path: Path, data: bytes, gpu: str | None = None) -> Scene:
    """Where the recorded process ran out of memory, or where it stood when the snapshot was taken."""
    snapshot = read_snapshot(path, data)
    requests = requests_of_snapshot(path, snapshot)
    try:
        return _scene(requests, _Recording(snapshot), gpu)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        raise TraceError(path, f"is not a snapshot of PyTorch's allocator, or is damaged ({error})", _ADVICE) from error


def _scene(requests: Requests, recording: _Recording, gpu: str | None) -> Scene:
    oom, state = recording.oom, recording.state()
    if oom is None and gpu is not None:
        raise ConfigError("no request failed while this snapshot was recorded: `memfit fit` says whether it fits on a GPU")
    requests = _until(requests, recording.moment)
    notes = [*requests.warnings, "a snapshot knows no categories: record the run with memfit.track(..., on_oom=...) to try more"]
    settings = replace(recorded_settings(requests), per_process_memory_fraction=None)
    capacity, ran_out = None, oom is not None
    if oom is not None:
        requests = _with_request(requests, recording, oom)
        capacity, more = _room(recording, state, oom)
        notes += ["what would have come after the failure is not known", *more]
    if gpu is not None:
        gpu, capacity = find_gpu(gpu).name, find_gpu(gpu).capacity()
        ran_out = not replay_requests(requests, settings, capacity=capacity).completes
    return Scene(
        requests=requests,
        settings=settings,
        capacity=capacity,
        total_memory=None,
        ran_out=ran_out,
        failed=len(requests) - 1 if ran_out else None,
        asked=int(oom["size"]) if oom is not None else None,
        future_known=False,
        holdings=_hold(recording, state, oom),
        gpu=gpu or "",
        segments=state.segments if gpu is None else None,
        notes=tuple(notes),
    )


def _until(requests: Requests, moment: int) -> Requests:
    """The requests before an entry, without the cached memory that the allocator gave back at the failure."""
    rows = np.flatnonzero(requests.event < moment)
    while len(rows) and requests.kind[rows[-1]] == RequestKind.EMPTY_CACHE:
        rows = rows[:-1]
    return requests.take(rows)


def _room(recording: _Recording, state: _SnapshotState, oom: dict[str, Any]) -> tuple[int, list[str]]:
    """What the allocator could get, and how that is known."""
    reserved, left = sum(segment.size for segment in state.segments), int(oom["device_free"])
    if left < int(oom["size"]):
        return reserved + left, []
    note = "the device had enough left, so the process may take only a share of it; assumed: the most that it ever took"
    return recording.peak_reserved(reserved), [note]


def _with_request(requests: Requests, recording: _Recording, oom: dict[str, Any]) -> Requests:
    """The same requests, and then the one that failed, on its stream."""
    raw = [recording.trace[event].get("stream", 0) for event in requests.event.tolist()]
    same = [row for row, stream in enumerate(raw) if stream == oom.get("stream", 0)]
    stream = int(requests.stream[same[-1]]) if same else 0
    return requests.append(size=largest_request(int(oom["size"])), stream=stream, event=recording.moment)


# -- what lay where ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """Memory in use: where it came from in the code, and what it is."""

    size: int
    requested: int
    state: str
    frames: list[dict[str, Any]]


@dataclass
class _SnapshotState:
    segments: list[SegmentState]
    live: dict[int, _Piece] = field(default_factory=dict)


class _Recording:
    """The device with the longest history."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.device, self.trace = snapshot.device, snapshot.trace
        ooms = [i for i, entry in enumerate(self.trace) if entry["action"] == "oom"]
        self.moment = ooms[-1] if ooms else len(self.trace)
        self.oom: dict[str, Any] | None = self.trace[self.moment] if ooms else None
        self._segments = snapshot.segments

    def peak_reserved(self, at_end: int) -> int:
        """The most that was reserved up to the moment, at which it was ``at_end``."""
        grows, shrinks = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
        signs = [(entry["action"] in grows) - (entry["action"] in shrinks) for entry in self.trace[: self.moment]]
        changes = [sign * int(entry["size"]) for sign, entry in zip(signs, self.trace, strict=False)]
        levels = np.cumsum(np.array([0, *changes], dtype=np.int64))
        return int(at_end + levels.max() - levels[-1])

    def state(self) -> _SnapshotState:
        """Segments and blocks at the moment: those of the snapshot, with what came since undone."""
        live = {address: piece for segment in self._segments for address, piece in _pieces(segment)}
        ranges = _Ranges(_Range.of(segment) for segment in self._segments)
        for entry in reversed(self.trace[self.moment :]):
            action, address, size = entry["action"], int(entry.get("addr", 0)), int(entry.get("size", 0))
            if action == "alloc":
                live.pop(address, None)
            elif action == "free_completed":
                live[address] = _Piece(-(-size // MIN_BLOCK) * MIN_BLOCK, size, "active_allocated", entry.get("frames", []))
            elif action in ("segment_alloc", "segment_map"):
                ranges.take_out(address, size)
            elif action in ("segment_free", "segment_unmap"):
                ranges.put_in(_Range(address, size, int(entry.get("stream", 0)), size <= SMALL_SEGMENT, (0, 0), False))
        for entry in self.trace[: self.moment]:
            piece = live.get(int(entry.get("addr", 0))) if entry["action"] == "alloc" else None
            if piece is not None and entry.get("frames"):
                live[int(entry["addr"])] = replace(piece, frames=entry["frames"])
        addresses = sorted(live)
        return _SnapshotState([known.filled(live, addresses) for known in ranges.known], live)


def _pieces(segment: dict[str, Any]) -> Iterable[tuple[int, _Piece]]:
    address = int(segment["address"])
    for block in segment["blocks"]:
        size = int(block["size"])
        if block["state"] != "inactive":
            asked = int(block.get("requested_size") or size)
            yield address, _Piece(size, asked, str(block["state"]), block.get("frames", []))
        address += size


@dataclass(frozen=True)
class _Range:
    """A segment, or a mapped stretch of an expandable one."""

    address: int
    size: int
    stream: int
    small: bool
    pool: tuple[int, ...]
    expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.size

    @classmethod
    def of(cls, segment: dict[str, Any]) -> _Range:
        return cls(
            int(segment["address"]),
            int(segment["total_size"]),
            int(segment.get("stream", 0)),
            segment.get("segment_type", "large") == "small",
            tuple(segment.get("segment_pool_id", (0, 0))),
            bool(segment.get("is_expandable", False)),
        )

    def without(self, address: int, size: int) -> Iterable[_Range]:
        """What is left of it outside a stretch."""
        end, other_end = self.address + self.size, address + size
        if address >= end or other_end <= self.address:
            yield self
            return
        if self.address < address:
            yield replace(self, size=address - self.address)
        if other_end < end:
            yield replace(self, address=other_end, size=end - other_end)

    def filled(self, live: dict[int, _Piece], addresses: list[int]) -> SegmentState:
        """With the blocks in it, and what is free between them; ``addresses`` are those of all blocks, in order."""
        blocks, at, end = [], self.address, self.address + self.size
        for address in addresses[bisect_left(addresses, self.address) : bisect_left(addresses, end)]:
            piece = live[address]
            if address > at:
                blocks.append(BlockState(at, address - at, 0, "inactive", -1))
            blocks.append(BlockState(address, piece.size, piece.requested, piece.state, -1))
            at = address + piece.size
        if at < end:
            blocks.append(BlockState(at, end - at, 0, "inactive", -1))
        pool = int(self.pool != (0, 0))
        return SegmentState(self.address, self.size, self.stream, self.small, pool, self.expandable, tuple(blocks))


class _Ranges:
    """Ranges that do not overlap, by address."""

    def __init__(self, known: Iterable[_Range]) -> None:
        self.known: list[_Range] = []
        for one in sorted(known, key=_address):
            self.put_in(one)

    def put_in(self, one: _Range) -> None:
        place = bisect_left(self.known, one.address, key=_address)
        before, after = self.known[max(place - 1, 0) : place], self.known[place : place + 1]
        if any(other.end > one.address for other in before) or any(other.address < one.end for other in after):
            raise ValueError("two of its segments overlap")
        self.known.insert(place, one)

    def take_out(self, address: int, size: int) -> None:
        first = max(bisect_left(self.known, address, key=_address) - 1, 0)
        last = bisect_left(self.known, address + size, key=_address)
        self.known[first:last] = [rest for one in self.known[first:last] for rest in one.without(address, size)]


def _address(one: _Range) -> int:
    return one.address


# -- whose it was ------------------------------------------------------------------------------------------------------------


def _hold(recording: _Recording, state: _SnapshotState, oom: dict[str, Any] | None) -> Holdings:
    by_place: dict[str, list[int]] = {}
    # Blocks share their stacks: each is looked at once.
    stacks = {id(piece.frames): piece.frames for piece in state.live.values()}
    places = {number: place(frames) for number, frames in stacks.items()}
    placed = [(piece.size, places[id(piece.frames)]) for piece in state.live.values()]
    for size, where in placed:
        by_place.setdefault(where, []).append(size)
    owners = [Holding(owner=where, num_members=len(sizes), size_bytes=sum(sizes)) for where, sizes in by_place.items()]
    largest = sorted(placed, key=lambda row: -row[0])[:NUM_BLOCKS]
    return Holdings(
        device=f"cuda:{recording.device}",
        moment=None,
        place=place(oom.get("frames", [])) if oom is not None else "",
        op="",
        categories={},
        owners=tuple(sorted(owners, key=lambda owner: -owner.size_bytes)),
        blocks=tuple(HeldBlock(size_bytes=size, category="", op="", owner=where) for size, where in largest),
    )


def place(frames: list[dict[str, Any]]) -> str:
    """The innermost line of Python outside PyTorch and the recorder: ``train.py:33 in step``. Empty where no stack was recorded."""
    python = [frame for frame in frames if str(frame["filename"]).endswith(".py")]
    own = [frame for frame in python if not _is_ours(_path(frame).parts)]
    for frame in own or python:
        return f"{_path(frame).name}:{int(frame['line'])} in {frame['name']}"
    return NO_STACK


def _path(frame: dict[str, Any]) -> PurePosixPath:
    return PurePosixPath(str(frame["filename"]).replace("\\", "/"))


def _is_ours(parts: tuple[str, ...]) -> bool:
    """A file of PyTorch's, or of memfit's recorder, through which every operator of a tracked run goes."""
    return "torch" in parts[:-1] or parts[-3:-1] == ("memfit", "record")
