"""The entries of a history as columns, and what a device held before the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from memfit.allocator.sources.entries import ALLOC, CODES, FREE_REQUESTED, OTHER
from memfit.ledger.schema import Array

_FIELDS: Final = itemgetter("action", "addr", "size", "stream", "time_us", "user_metadata")
_MOST_FRAMES: Final = 12


class Frame(NamedTuple):
    """A line of Python that ran."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""The innermost first."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """One device's entries, in order."""

    device: int
    action: Array
    address: Array
    size: Array
    stream: Array
    time_ns: Array
    mark: Array
    """The number of the last mark before each entry."""
    stacks: dict[int, Stack] = field(default_factory=dict)
    """By entry, where stacks were recorded."""

    def __len__(self) -> int:
        return len(self.action)


def read_trace(device: int, entries: Sequence[dict[str, Any]], mark_times: Array, first_mark: int) -> Trace:
    """The columns of a device's entries.

    Which mark was the last before an entry, its time tells: both are of one clock, and some microseconds lie between a mark and
    what is allocated next. The notes of a thread are older than what it allocates, whatever the clock says.
    """
    try:
        rows = list(map(_FIELDS, entries))
    except KeyError:  # running out of memory has no address; older releases have no notes
        rows = [_row(entry) for entry in entries]
    action, address, size, stream, time_us, note = zip(*rows, strict=True) if rows else ((), (), (), (), (), ())
    time_ns = np.array(time_us, dtype=np.int64) * 1000 + 999  # microseconds are cut off, not rounded
    notes = np.array([int(text) if text.isdecimal() else -1 for text in note], dtype=np.int64)
    by_time = np.searchsorted(mark_times, time_ns, side="right") - 1 + first_mark
    mark = np.maximum(by_time, np.where(notes < first_mark + len(mark_times), notes, -1))
    with_stacks = bool(entries) and any(entry.get("frames") for entry in entries)
    return Trace(
        device=device,
        action=np.array([CODES.get(name, OTHER) for name in action], dtype=np.uint8),
        address=np.array(address, dtype=np.int64),
        size=np.array(size, dtype=np.int64),
        stream=np.array(stream, dtype=np.int64),
        time_ns=time_ns,
        mark=np.maximum.accumulate(mark) if len(mark) else mark,
        stacks={i: _stack(entry["frames"]) for i, entry in enumerate(entries) if entry.get("frames")} if with_stacks else {},
    )


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    address = entry.get("addr", entry.get("device_free", 0))
    return entry["action"], address, entry["size"], entry["stream"], entry["time_us"], entry.get("user_metadata") or ""


def _stack(frames: Sequence[dict[str, Any]]) -> Stack:
    return tuple(Frame(frame["filename"], frame["line"], frame["name"]) for frame in frames if frame["filename"].endswith(".py"))[
        :_MOST_FRAMES
    ]


class Held(NamedTuple):
    """A block that a device holds."""

    requested: int
    given: int
    """-1 where it is not known."""
    stream: int


@dataclass(frozen=True, eq=False)
class State:
    """What a device held at one moment."""

    device: int
    blocks: dict[int, Held]
    """By address."""
    free: dict[int, int] = field(default_factory=dict)
    """The free stretches of segments for large blocks, by address."""
    segments: frozenset[int] = frozenset()
    """Where segments for large blocks begin."""
    largest_free: int = 0
    is_exact: bool = True
    """Are the free stretches known?"""

    @classmethod
    def of(cls, device: int, segments: Sequence[dict[str, Any]]) -> State:
        """From a reading."""
        blocks: dict[int, Held] = {}
        free: dict[int, int] = {}
        starts, largest = set(), 0
        for segment in segments:
            if segment["device"] != device:
                continue
            is_large = segment["segment_type"] == "large" and not segment.get("is_expandable", False)
            if is_large:
                starts.add(segment["address"])
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    blocks[block["address"]] = Held(block["requested_size"], block["size"], segment["stream"])
                elif block["state"] == "inactive":
                    largest = max(largest, block["size"])
                    if is_large:
                        free[block["address"]] = block["size"]
        return cls(device, blocks, free, frozenset(starts), largest)

    def before(self, trace: Trace) -> State:
        """What the device held before all that: each entry taken back, the last first."""
        blocks = dict(self.blocks)
        columns = (trace.action, trace.address, trace.size, trace.stream)
        for action, address, size, stream in zip(*(column[::-1].tolist() for column in columns), strict=True):
            if action == ALLOC:
                blocks.pop(address, None)
            elif action == FREE_REQUESTED:
                blocks[address] = Held(size, -1, stream)
        return State(self.device, blocks, is_exact=not len(trace) and self.is_exact)
