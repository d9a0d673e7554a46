"""The times of the host and of every stream: kernels queue, events order them, the host runs ahead or waits.

::

    host     ──issue──issue──issue──────────────────issue──(waits)──────┐
    stream 0        └─kernel─┐─kernel─┐─kernel──────┐      └─kernel─────┴─> finish
    group 1                  └─all-gather─────┘ └ exposed ┘

All seconds are prices; nothing is measured.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

QUEUE_DEPTH: Final = 1022
"""Most launches that can be queued on a GPU before the host waits. CUDA's channels have 1024 entries."""

ASK_SECONDS: Final = 3e-6
"""Assumed host seconds of a query from Python whether work is done. Not measured; above zero, so that polling loops end."""

Captured = tuple[tuple[float, float, float], ...]
"""Kernels in order: seconds, the number of their cost, the number of their scope."""

COMMUNICATION: Final = -1
"""Streams below 0 are those on which process groups communicate."""


@dataclass(frozen=True, eq=False)
class Spans:
    """What ran, in order of issue: one entry per kernel in each column."""

    stream: Array
    begin: Array
    seconds: Array
    cost: Array
    """The index of its cost among the run's costs."""
    scope: Array
    """The ledger's number of its scope."""

    @classmethod
    def from_rows(cls, rows: list[float]) -> Spans:
        """Reads a flat list with five numbers per kernel."""
        table = np.array(rows, dtype=np.float64).reshape(-1, 5)
        stream, begin, seconds, cost, scope = table.T
        return cls(stream.astype(np.int32), begin, seconds, cost.astype(np.int32), scope.astype(np.int64))

    @classmethod
    def joined(cls, parts: list[Spans]) -> Spans:
        """Concatenates spans."""
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True)
class StepMark:
    """The beginning of a step: its time and its first span."""

    seconds: float
    span: int
    host_seconds: float
    """Host seconds spent on issuing work by then."""


@dataclass(frozen=True)
class TimelineState:
    """A snapshot of a timeline, for ``stretch_since``."""

    host: float
    waited: float
    ready: dict[int, float]
    span: int


@dataclass(frozen=True, eq=False)
class Stretch:
    """What a part of a run added to the host and to its streams. Times are relative to the host's time at its beginning."""

    host: float
    waited: float
    ready: dict[int, float]
    """When each used stream is done."""
    spans: Spans
    queue: Array
    """When the launches end that are still queued."""

    def between(self, other: Stretch, share: float) -> Stretch:
        """Interpolates by a share towards another stretch that did the same with other sizes; returns this one if it did not."""

        def on_the_way(here: Any, there: Any) -> Any:
            return here + share * (there - here)

        if self.ready.keys() != other.ready.keys() or len(self.spans) != len(other.spans):
            return self
        begin, seconds = (on_the_way(getattr(self.spans, name), getattr(other.spans, name)) for name in ("begin", "seconds"))
        return replace(
            self,
            host=on_the_way(self.host, other.host),
            waited=on_the_way(self.waited, other.waited),
            ready={stream: on_the_way(ready, other.ready[stream]) for stream, ready in self.ready.items()},
            spans=replace(self.spans, begin=begin, seconds=seconds),
        )


class Timeline:
    """Advances as work is issued. All times are seconds since it was made."""

    def __init__(self, launch_seconds: float = 0.0, gap_seconds: float = 0.0, slowdown_beside: float = 0.0) -> None:
        """``slowdown_beside``: how much longer kernels take while a collective runs, as a share."""
        self._launch, self._gap, self._slowdown = launch_seconds, gap_seconds, slowdown_beside
        self._communicating: list[tuple[float, float]] = []
        """When collectives begin and end, in order of issue; those that are over before the next kernel are forgotten."""
        self.host = 0.0
        """When the host is done with what it has issued so far."""
        self._waited = 0.0
        self.num_spans = 0
        self.num_dropped = 0
        """Number of spans that are no longer kept: if stretches were skipped, those of all steps but the last."""
        self._rows: list[float] = []
        self._skipped: list[Spans] = []
        self.steps: list[StepMark] = []
        self._ready: dict[int, float] = {}
        self._queue: deque[float] = deque()

    def spend(self, seconds: float) -> None:
        """Advances the host by some seconds."""
        self.host += seconds

    @property
    def host_spent(self) -> float:
        """The host's time without waiting."""
        return self.host - self._waited

    def run(self, stream: int, seconds: float, cost: int, scope: int) -> None:
        """Queues a kernel on a stream."""
        begin, ready = self.host + self._launch, self._ready.get(stream, 0.0) + self._gap
        if ready > begin:
            begin = ready
        if self._communicating and stream >= 0:
            seconds = self._slowed(begin, seconds)
        end = self._ready[stream] = begin + seconds
        self._rows += (stream, begin, seconds, cost, scope)
        self.num_spans += 1
        self._queue_launch(end)

    def _slowed(self, begin: float, seconds: float) -> float:
        """What a kernel takes that could begin now, with the collectives that were issued before it."""
        self._communicating = [span for span in self._communicating if span[1] > begin]
        at, left = begin, seconds
        for first, last in sorted(self._communicating):
            alone = max(first - at, 0.0)
            if alone >= left or last <= at:
                continue
            at, left = at + alone, left - alone
            beside = min(last - at, left * (1 + self._slowdown))
            at, left = at + beside, left - beside / (1 + self._slowdown)
        return at + left - begin

    def _queue_launch(self, end: float) -> None:
        queue = self._queue
        queue.append(end)
        if len(queue) > QUEUE_DEPTH:
            oldest = queue.popleft()
            if oldest > self.host:
                self.wait_on_host(oldest)

    def captured_since(self, span: int) -> Captured:
        """The kernels issued from span number ``span`` on, for ``run_again``."""
        first = 5 * (span - self._num_before_rows())
        return tuple(zip(self._rows[first + 2 :: 5], self._rows[first + 3 :: 5], self._rows[first + 4 :: 5], strict=True))

    def run_again(self, stream: int, captured: Captured) -> None:
        """Launches a CUDA graph: its kernels queue on one stream and take one place in the queue of launches."""
        begin = max(self.host + self._launch, self._ready.get(stream, 0.0) + self._gap)
        for seconds, cost, scope in captured:
            self._rows += (stream, begin, seconds, cost, scope)
            self._ready[stream] = begin + seconds
            begin += seconds + self._gap
        self.num_spans += len(captured)
        self._queue_launch(self._ready.get(stream, 0.0))

    def communicate(self, stream: int, group: int, seconds: float, cost: int, scope: int) -> float:
        """Queues a collective on its group's stream, after the current work of ``stream``; returns when it ends."""
        own = COMMUNICATION - group
        self.wait(own, self.arrival(stream))
        self.run(own, seconds, cost, scope)
        if self._slowdown and seconds:
            self._communicating.append((self._ready[own] - seconds, self._ready[own]))
        return self._ready[own]

    def arrival(self, stream: int) -> float:
        """When the current work of a stream is done."""
        return max(self._ready.get(stream, 0.0), self.host)

    def wait(self, stream: int, until: float) -> None:
        """Makes later work of a stream start no earlier than a time."""
        if until > self._ready.get(stream, 0.0):
            self._ready[stream] = until

    def wait_on_host(self, until: float) -> None:
        if until > self.host:
            self._waited += until - self.host
            self.host = until

    def is_over(self, moment: float) -> bool:
        """Queries without waiting whether a time has passed, which costs the host some time."""
        self.spend(ASK_SECONDS)
        return self.host >= moment

    def now_ns(self) -> int:
        """The later of the default stream's and the host's time; it never decreases."""
        ready, host = self._ready.get(0, 0.0), self.host
        return int(1e9 * (ready if ready > host else host))

    def synchronize(self) -> None:
        """Makes the host wait for every stream."""
        self.wait_on_host(max(self._ready.values(), default=0.0))
        self._queue.clear()

    def mark_step(self) -> None:
        """Starts a step when all earlier work is done, as in a loop that reads the loss."""
        self.synchronize()
        self.steps.append(StepMark(self.host, self.num_spans, self.host_spent))
        if self._skipped:
            self._skipped.clear()
            self._rows.clear()
            self.num_dropped = self.num_spans

    def spans(self) -> Spans:
        """The spans that are kept."""
        return Spans.joined([*self._skipped, Spans.from_rows(self._rows)])

    def moment(self) -> TimelineState:
        return TimelineState(self.host, self._waited, dict(self._ready), self.num_spans)

    def stretch_since(self, began: TimelineState) -> Stretch:
        """The stretch since a snapshot."""
        first = 5 * (began.span - self._num_before_rows())
        spans = Spans.from_rows(self._rows[first:])
        used = {stream: ready for stream, ready in self._ready.items() if began.ready.get(stream) != ready}
        return Stretch(
            self.host - began.host,
            self._waited - began.waited,
            {stream: ready - began.host for stream, ready in used.items()},
            replace(spans, begin=spans.begin - began.host),
            np.array(self._queue) - began.host,
        )

    def skip(self, stretch: Stretch, first_scope: int, outer_scope: int) -> None:
        """Advances as if the stretch had run again. Its scopes begin at ``first_scope``; negative ones become ``outer_scope``."""
        began, begin = self.host, stretch.spans.begin + self.host
        for stream, ready in stretch.ready.items():
            here = np.flatnonzero(stretch.spans.stream == stream)
            until = 0.0
            if len(here):
                free = self._ready.get(stream, 0.0) + self._gap
                begin[here] = _queued(begin[here], stretch.spans.seconds[here], free, self._gap)
                until = float(begin[here[-1]] + stretch.spans.seconds[here[-1]])
            self._ready[stream] = max(began + ready, self._ready.get(stream, 0.0), until)
        self.host, self._waited = began + stretch.host, self._waited + stretch.waited
        self._queue = deque((stretch.queue + began).tolist())
        if len(stretch.spans):
            scope = stretch.spans.scope
            moved = np.where(scope >= 0, scope + first_scope, outer_scope)
            self._skipped += (Spans.from_rows(self._rows), replace(stretch.spans, begin=begin, scope=moved))
            self._rows.clear()
            self.num_spans += len(stretch.spans)

    def _num_before_rows(self) -> int:
        return self.num_spans - len(self._rows) // 5

    def now(self) -> StepMark:
        """A step mark at the time when all issued work is done."""
        self.synchronize()
        return StepMark(self.host, self.num_spans, self.host_spent)


def _queued(begin: Array, seconds: Array, free: float, gap: float) -> Array:
    """The start times of one stream's kernels that could start at ``begin``, with the stream free from ``free``."""
    before = np.concatenate(([0.0], np.cumsum(seconds + gap)[:-1]))
    earliest = begin - before
    earliest[0] = max(earliest[0], free)
    queued: Array = before + np.maximum.accumulate(earliest)
    return queued
