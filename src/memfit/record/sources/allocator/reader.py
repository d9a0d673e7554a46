"""Reads the allocator's history, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from memfit.allocator.sources.entries import ALLOC
from memfit.record.sources.allocator.history import MOST_ENTRIES, AllocatorHistory, DeviceFigures
from memfit.record.sources.allocator.joining import Window
from memfit.record.sources.allocator.marks import Marks
from memfit.record.sources.allocator.traces import State, Trace, read_trace

READ_ENTRIES: Final = 200_000
"""How many entries are left in the history before it is read, where everything is kept."""
READING_SHARE: Final = 0.03
"""Reading for the journal's sake takes at most this share of the time."""


class HistoryReader:
    """Has the allocator keep a history. What came since it began is a ``Window``, or forgotten; either way it begins anew."""

    def __init__(self, history: AllocatorHistory, marks: Marks) -> None:
        self._history, self._marks = history, marks
        self.devices: list[int] = []
        """Those that the process uses."""
        self.is_on = False
        self.with_stacks = False
        """Does an entry have the stack that asked for it, from the next beginning on?"""
        self.follows = False
        """Does what comes next follow what was last read?"""
        self.num_missing = 0
        """Allocations missing from the history: there were too many, or other code restarted it."""
        self.cost_ns = 0
        """What the last reading took, with what was made of it."""
        self._states: list[State] = []
        """What devices held when the history was last begun; empty where that is not known."""
        self._at_start: dict[int, DeviceFigures] = {}
        self._read_ns = 0

    def start(self) -> None:
        """Keeps a history from now on, and looks up what is there, so that what follows is exact."""
        if not self.is_on:
            self._history.start(with_stacks=self.with_stacks)
            self.is_on = True
        self.find_devices()
        reading = self._history.read()
        self._states = [State.of(device, reading.segments) for device in range(len(reading.traces))]
        self.follows = False
        self._begin_anew()
        self._marks.take()

    def stop(self) -> None:
        """Raises where a device is gone."""
        if self.is_on:
            self.is_on = False
            self._history.stop()

    def find_devices(self) -> None:
        used = [device for device in range(self._history.num_devices()) if self._history.figures(device).num_requests]
        self.devices = used or ([0] if self._history.num_devices() else [])

    def figures(self) -> dict[int, DeviceFigures]:
        """By device, as its allocator counts."""
        return {device: self._history.figures(device) for device in self.devices}

    @property
    def is_exact(self) -> bool:
        """Is it known what devices held when the history was last begun?"""
        return bool(self._states)

    def largest_free(self, device: int) -> int:
        """The longest free stretch when the history was last begun, -1 where it is not known."""
        return next((state.largest_free for state in self._states if state.device == device), -1)

    def is_worth_reading(self, figures: dict[int, DeviceFigures], least_ns: int | None) -> bool:
        """Has the history grown long? Or is it time for the journal, which is due every ``least_ns``, and cheap enough?"""
        if sum(now.num_entries - self._at_start[device].num_entries for device, now in figures.items()) > READ_ENTRIES:
            return True
        return least_ns is not None and time.time_ns() - self._read_ns > max(least_ns, self.cost_ns / READING_SHARE)

    def forget(self, figures: dict[int, DeviceFigures]) -> None:
        """What came since the history began is not needed."""
        self._states, self.follows = [], False
        self._begin_anew(figures)
        self._marks.take()

    def read(self) -> tuple[Window, bool]:
        """What came since the history began, and whether it follows what was read before."""
        self.find_devices()
        reading = self._history.read()
        self._history.start(with_stacks=self.with_stacks)
        marks = self._marks.take()
        traces = [
            read_trace(device, entries, marks.rows[:, 2], marks.first) for device, entries in enumerate(reading.traces) if entries
        ]
        states = [State.of(device, reading.segments) for device in range(len(reading.traces))]
        figures = self.figures()
        self._count_missing(traces, figures)
        window = Window(
            traces=traces,
            marks=marks.rows,
            first_mark=marks.first,
            facts=marks.facts,
            before=self._states or _before(states, traces),
            peak_bytes=max((now.peak for now in figures.values()), default=0),
        )
        follows, self._states, self.follows = self.follows, states, True
        self._at_start, self._read_ns = figures, time.time_ns()
        return window, follows

    def _begin_anew(self, figures: dict[int, DeviceFigures] | None = None) -> None:
        self._history.start(with_stacks=self.with_stacks)
        self._at_start, self._read_ns = figures or self.figures(), time.time_ns()

    def _count_missing(self, traces: Sequence[Trace], figures: dict[int, DeviceFigures]) -> None:
        seen = {trace.device: int((trace.action == ALLOC).sum()) for trace in traces}
        for device, now in figures.items():
            if device in self._at_start:
                asked = now.num_requests - self._at_start[device].num_requests
                self.num_missing += max(0, asked - seen.get(device, 0))
        if any(len(trace) >= MOST_ENTRIES for trace in traces) or self.num_missing:
            self._states = []


def _before(states: Sequence[State], traces: Sequence[Trace]) -> list[State]:
    by_device = {trace.device: trace for trace in traces}
    return [state.before(by_device[state.device]) if state.device in by_device else state for state in states]
