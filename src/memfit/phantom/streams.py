"""Streams and events that order nothing, but know who they are: a block belongs to the stream it was allocated on."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any, Self

import torch


class Stream:
    """A CUDA stream by number. The default stream is 0."""

    _numbers = itertools.count(1)
    default: Stream

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.stream_id = self.cuda_stream = next(Stream._numbers)
        self.priority = priority
        self.device = torch.device("cuda", _index_of(device))
        self._outer: list[Stream] = []

    @property
    def device_index(self) -> int:
        return self.device.index

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def __enter__(self) -> Self:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        set_stream(self._outer.pop())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """A CUDA event: everything before it is always done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1.0


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


_of_thread = threading.local()


def restart() -> None:
    """A new world numbers its streams from 1 again, so that two predictions are alike."""
    Stream._numbers = itertools.count(1)
    _of_thread.__dict__.clear()
    Stream.default = Stream()
    Stream.default.stream_id = Stream.default.cuda_stream = 0
    Stream._numbers = itertools.count(1)


def current_stream(device: Any = None) -> Stream:
    found: Stream = getattr(_of_thread, "stream", Stream.default)
    return found


def current_stream_number(device: int = 0) -> int:
    return current_stream().stream_id


def default_stream(device: Any = None) -> Stream:
    return Stream.default


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _of_thread.stream = stream


def _index_of(device: Any) -> int:
    if isinstance(device, int):
        return device
    return (torch.device(device).index if device is not None else None) or 0
