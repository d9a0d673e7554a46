"""Streams and events: a block belongs to the stream it was allocated on, and a kernel waits for what is before it on its stream.

When that is, is known to the timeline of the world: nothing here takes time itself.

Backward runs on the streams of forward: autograd runs each node on the stream that was current when the node was made. Nodes are
numbered as they are made, so the numbers at which a stream was entered and left tell which nodes are its own.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from types import TracebackType
from typing import Any, ClassVar, Self

import torch

from memfit.phantom.current import find_world
from memfit.timing.timeline import Timeline
from memfit.torch_compat.autograd import current_node, graph_task_id, next_sequence_nr

LEAST_MILLISECONDS = 1e-3
"""Between two events on a GPU is never no time at all; scripts divide by it."""


class Stream:
    """A CUDA stream by number. The default stream is 0."""

    _numbers = itertools.count(1)
    default: Stream

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.stream_id = self.cuda_stream = next(Stream._numbers)
        self.priority = priority
        self.device = torch.device("cuda", _index_of(device))
        self._outer: list[Stream] = []

    device_type = 1
    """CUDA's number among the kinds of devices."""

    @property
    def device_index(self) -> int:
        return self.device.index

    def wait_stream(self, stream: Any) -> None:
        _timeline().wait(self.stream_id, _timeline().arrival(stream.stream_id))

    def wait_event(self, event: Any) -> None:
        _timeline().wait(self.stream_id, event.seconds)

    def synchronize(self) -> None:
        _timeline().wait_on_host(_timeline().arrival(self.stream_id))

    def query(self) -> bool:
        return _timeline().is_over(_timeline().arrival(self.stream_id))

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Self:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        set_stream(self._outer.pop())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """A CUDA event: when what was on its stream is done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = 0.0
        """When, on the timeline of the world."""

    def record(self, stream: Any = None) -> None:
        self.seconds = _timeline().arrival((stream or current_stream()).stream_id)

    def wait(self, stream: Any = None) -> None:
        _timeline().wait((stream or current_stream()).stream_id, self.seconds)

    def synchronize(self) -> None:
        _timeline().wait_on_host(self.seconds)

    def query(self) -> bool:
        return _timeline().is_over(self.seconds)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return max(1000 * (end.seconds - self.seconds), LEAST_MILLISECONDS)


class StreamContext:
    """``with torch.cuda.stream(stream):``"""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._stream is not None:
            self._stream.__exit__(kind, error, trace)


class NodeStreams:
    """For one thread: the nodes that were made on other streams than the default one."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._streams: list[int] = []
        self._since = 0

    def leave(self, stream: int) -> None:
        """``stream`` was the current one until now."""
        now = next_sequence_nr()
        if stream and now > self._since:
            self._starts.append(self._since)
            self._ends.append(now)
            self._streams.append(stream)
        self._since = now

    def find(self, sequence_nr: int) -> int:
        index = bisect_right(self._starts, sequence_nr) - 1
        return self._streams[index] if index >= 0 and sequence_nr < self._ends[index] else 0


_of_thread = threading.local()
_node_streams: dict[int, NodeStreams] = {}


def restart() -> None:
    """A new world numbers its streams from 1 again, so that two predictions are alike."""
    Stream._numbers = itertools.count(1)
    _of_thread.__dict__.clear()
    _node_streams.clear()
    PrivatePool.restart()
    Stream.default = Stream()
    Stream.default.stream_id = Stream.default.cuda_stream = 0
    Stream._numbers = itertools.count(1)


def current_stream(device: Any = None) -> Stream:
    found: Stream = getattr(_of_thread, "stream", Stream.default)
    return found


def current_stream_number(device: int = 0) -> int:
    """The stream that memory is taken from: the thread's own, in backward that of the node."""
    if not _node_streams:  # none was chosen yet
        return 0
    chosen = current_stream().stream_id
    if chosen or (node := current_node()) is None:
        return chosen
    sequence_nr = node._sequence_nr()
    return next(filter(None, (made.find(sequence_nr) for made in _node_streams.values())), 0)


# -- private pools -----------------------------------------------------------------------------------------------------------------


class PrivatePool:
    """Memory that a CUDA graph or a ``torch.cuda.MemPool`` keeps to itself.

    In a ledger a pool's blocks have streams of their own: the allocator gives nothing that was freed on one stream to another. It
    differs in one thing: when memory is short, what is idle in a pool that is still in use is not given back on a GPU.
    """

    _numbers = itertools.count(1)
    _in_use: ClassVar[list[PrivatePool]] = []

    def __init__(self, *, takes_backward: bool) -> None:
        """``takes_backward``: of what is allocated meanwhile, also that of backward passes, which run in another thread."""
        self.number = next(PrivatePool._numbers)
        self._takes_backward = takes_backward

    @property
    def id(self) -> tuple[int, int]:
        return (0, self.number)

    def begin(self) -> None:
        """What is allocated from now on comes from this pool."""
        PrivatePool._in_use.append(self)

    def end(self) -> None:
        if self in PrivatePool._in_use:
            PrivatePool._in_use.remove(self)

    @classmethod
    def restart(cls) -> None:
        cls._numbers = itertools.count(1)
        cls._in_use.clear()

    @classmethod
    def stream_number(cls, device: int = 0) -> int:
        """The stream that memory is taken from, as the ledger has it."""
        number = current_stream_number(device)
        if not cls._in_use:
            return number
        pool = cls._in_use[-1]
        return number + pool.number * _STREAMS_OF_A_POOL if pool._takes_backward or graph_task_id() == -1 else number


_STREAMS_OF_A_POOL = 1 << 32


def synchronize(device: Any = None) -> None:
    """The host waits for every stream."""
    _timeline().synchronize()


def default_stream(device: Any = None) -> Stream:
    return Stream.default


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _node_streams.setdefault(threading.get_ident(), NodeStreams()).leave(current_stream().stream_id)
        _of_thread.stream = stream


def _timeline() -> Timeline:
    """That of the current world. Outside all, nothing is on any stream."""
    world = find_world()
    return Timeline() if world is None else world.clock.timeline


def _index_of(device: Any) -> int:
    if isinstance(device, int):
        return device
    return (torch.device(device).index if device is not None else None) or 0
