"""Who allocates, while a compiled graph runs: what the recorder is told beside the tensors that it sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """A buffer of a compiled graph: the kernel that first writes into it, and the module whose code that kernel was made from."""

    kernel: str
    module: str
    """A path as ``named_modules`` gives it, seen from the module that was compiled."""
    is_backward: bool = False


class _Current(threading.local):
    origin: Origin | None = None
    is_replayed = False


_current = _Current()


def current_origin() -> Origin | None:
    """Of the buffer that is being allocated, if a compiled graph does that."""
    return _current.origin


def is_replayed() -> bool:
    """Is what is allocated part of a CUDA graph's own memory, which was allocated when the graph was recorded?"""
    return _current.is_replayed


@contextmanager
def allocating_for(origin: Origin | None) -> Iterator[None]:
    before, _current.origin = _current.origin, origin
    try:
        yield
    finally:
        _current.origin = before


@contextmanager
def replaying() -> Iterator[None]:
    _current.is_replayed = True
    try:
        yield
    finally:
        _current.is_replayed = False
