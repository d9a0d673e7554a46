"""A whole run, in C, through ctypes: the library knows nothing of Python, so one serves every version of it."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import astuple, fields
from functools import cache
from pathlib import Path

import numpy as np

from memfit.allocator.engine.allocator import TOP_ADDRESS
from memfit.allocator.engine.compiling import LIBRARY, compile_engine, in_checkout, source_digest
from memfit.allocator.engine.outcome import Outcome, TriedRun
from memfit.allocator.engine.prepared import Prepared
from memfit.allocator.engine.repeating import RepeatedStretch
from memfit.allocator.engine.rules import NO_LIMIT, Rules
from memfit.errors import HostMemoryError
from memfit.ledger.schema import Array

_NUMBER = ctypes.c_int64
_NUMBERS = ctypes.POINTER(_NUMBER)
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class _Rules(ctypes.Structure):
    _fields_ = [(field.name, _NUMBER) for field in fields(Rules)]


class _Requests(ctypes.Structure):
    _fields_ = [
        *((name, _NUMBER) for name in ("num_requests", "num_blocks", "num_free_lists", "top_address")),
        ("kind", _BYTES),
        *((name, _NUMBERS) for name in ("block", "size", "segment", "address", "free_list", "free_list_small", "free_list_pool")),
        ("stretches", _NUMBERS),
        ("num_stretches", _NUMBER),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        *((name, _NUMBERS) for name in ("block_bytes", "completed", "num_inactive", "segment_log")),
        *((name, _NUMBER) for name in ("num_log_rows", "num_done")),
        *((name, _NUMBER) for name in ("num_alloc_retries", "num_sync_all_streams", "num_oom_rejections")),
        *((name, _NUMBER) for name in ("most_granted", "least_refused")),
    ]


def load(path: Path) -> ctypes.CDLL | None:
    """A compiled engine; ``None`` where there is none, or it was made from another version of the source."""
    try:
        engine = ctypes.CDLL(str(path))
        engine.memfit_source.restype = ctypes.c_char_p
        if engine.memfit_source().decode() != source_digest():
            return None
    except (OSError, AttributeError):
        return None
    engine.memfit_run.argtypes = [ctypes.POINTER(_Rules), ctypes.POINTER(_Requests), ctypes.POINTER(_Outcome)]
    engine.memfit_release.argtypes = [ctypes.POINTER(_Outcome)]
    engine.memfit_open.argtypes, engine.memfit_open.restype = [ctypes.POINTER(_Rules), _NUMBER], ctypes.c_void_p
    engine.memfit_add_list.argtypes, engine.memfit_add_list.restype = [ctypes.c_void_p, _NUMBER], _NUMBER
    engine.memfit_go_on.argtypes, engine.memfit_go_on.restype = [ctypes.c_void_p, ctypes.POINTER(_Requests)], _NUMBER
    for told in (engine.memfit_allocated, engine.memfit_reserved):
        told.argtypes, told.restype = [ctypes.c_void_p], _NUMBER
    engine.memfit_close.argtypes, engine.memfit_close.restype = [ctypes.c_void_p], None
    return engine


@cache
def library() -> ctypes.CDLL | None:
    """The engine that the package was built with, if it was. In a checkout it is built when it is missing or out of date."""
    engine = load(LIBRARY)
    if engine is None and in_checkout() and not compile_engine(LIBRARY):
        engine = load(LIBRARY)
    return engine


def run(engine: ctypes.CDLL, prepared: Prepared, rules: Rules) -> Outcome:
    """Serves the requests until they are over or memory has run out."""
    block_bytes = np.zeros(prepared.num_blocks, dtype=np.int64)
    completed = np.full(prepared.num_blocks, len(prepared.kind), dtype=np.int64)
    num_inactive = np.zeros((len(prepared.kind), 2), dtype=np.int64)
    outcome = _Outcome(_pointer(block_bytes), _pointer(completed), _pointer(num_inactive))
    segment_log = _serve(engine, prepared, rules, (), outcome)
    return Outcome(
        num_done=outcome.num_done,
        block_bytes=block_bytes,
        completed=completed,
        num_inactive=num_inactive[: outcome.num_done],
        segment_log=segment_log,
        num_alloc_retries=outcome.num_alloc_retries,
        num_sync_all_streams=outcome.num_sync_all_streams,
        num_oom_rejections=outcome.num_oom_rejections,
        most_granted=outcome.most_granted,
        least_refused=outcome.least_refused,
    )


def try_run(engine: ctypes.CDLL, prepared: Prepared, rules: Rules) -> TriedRun:
    """Serves the requests until they are over or memory has run out, and leaves out repeats that can change nothing."""
    outcome = _Outcome()
    _serve(engine, prepared, rules, prepared.stretches if rules.collect_above == NO_LIMIT else (), outcome)
    return TriedRun(outcome.num_done == len(prepared.kind), outcome.most_granted, outcome.least_refused)


def _serve(
    engine: ctypes.CDLL, prepared: Prepared, rules: Rules, stretches: tuple[RepeatedStretch, ...], outcome: _Outcome
) -> Array:
    """Fills in the outcome; gives its log of segments."""
    columns = [np.ascontiguousarray(getattr(prepared, name)) for name in ("block", "size", "segment", "address", "free_list")]
    small, pool = (np.array([row[i] for row in prepared.free_lists], dtype=np.int64) for i in (1, 2))
    kind = np.ascontiguousarray(prepared.kind)
    rows = np.array([astuple(stretch) for stretch in stretches], dtype=np.int64)
    requests = _Requests(
        len(kind),
        prepared.num_blocks,
        len(prepared.free_lists),
        prepared.top_address,
        kind.ctypes.data_as(_BYTES),
        *(_pointer(column) for column in (*columns, small, pool, rows)),
        len(stretches),
    )
    numbers = _rules(rules)
    failed = engine.memfit_run(ctypes.byref(numbers), ctypes.byref(requests), ctypes.byref(outcome))
    segment_log = _copy_rows(outcome)
    engine.memfit_release(ctypes.byref(outcome))
    if failed:
        raise HostMemoryError("replaying the run")
    return segment_log


class NativeOpenRun:
    """A run of the default pool, of which the requests come one after the other. After one that was refused it may go on."""

    def __init__(self, engine: ctypes.CDLL, rules: Rules) -> None:
        self._engine = engine
        self._run = engine.memfit_open(ctypes.byref(_rules(rules)), TOP_ADDRESS)
        if self._run is None:
            raise HostMemoryError("following the allocator")
        self._close = weakref.finalize(self, engine.memfit_close, self._run)
        self._kind = np.zeros(1, dtype=np.uint8)
        self._numbers = np.zeros((5, 1), dtype=np.int64)
        """Of a single request: block, size, segment, address, free list."""
        self._single = self._requests(self._kind, *self._numbers)

    def add_list(self, stream: int, *, small: bool) -> int:
        """The number of a new free list."""
        number: int = self._engine.memfit_add_list(self._run, int(small))
        return self._checked(number)

    def serve_one(self, kind: int, block: int, size: int = 0, segment: int = 0, free_list: int = 0) -> bool:
        """False if it is refused."""
        self._kind[0] = kind
        self._numbers[:, 0] = block, size, segment, 0, free_list
        self._single.num_blocks = block + 1
        return self._checked(self._engine.memfit_go_on(self._run, ctypes.byref(self._single))) == 1

    def serve(self, kind: Array, block: Array, size: Array, segment: Array, free_list: Array) -> int:
        """How many were served until one was refused."""
        # By name: what is passed on does not keep the columns alive.
        columns = [np.ascontiguousarray(column) for column in (kind, block, size, segment, np.zeros_like(size), free_list)]
        requests = self._requests(*columns)
        return self._checked(self._engine.memfit_go_on(self._run, ctypes.byref(requests)))

    @property
    def allocated(self) -> int:
        return int(self._engine.memfit_allocated(self._run))

    @property
    def reserved(self) -> int:
        return int(self._engine.memfit_reserved(self._run))

    def _requests(self, kind: Array, *columns: Array) -> _Requests:
        num_blocks = int(columns[0].max(initial=-1)) + 1
        return _Requests(len(kind), num_blocks, 0, 0, kind.ctypes.data_as(_BYTES), *(_pointer(column) for column in columns))

    def _checked(self, number: int) -> int:
        if number < 0:
            raise HostMemoryError("following the allocator")
        return number


def _rules(rules: Rules) -> _Rules:
    return _Rules(*(int(getattr(rules, field.name)) for field in fields(Rules)))


def _pointer(column: Array) -> ctypes._Pointer[ctypes.c_int64]:
    return column.ctypes.data_as(_NUMBERS)


def _copy_rows(outcome: _Outcome) -> Array:
    if not outcome.num_log_rows:
        return np.zeros((0, 5), dtype=np.int64)
    return np.ctypeslib.as_array(outcome.segment_log, shape=(outcome.num_log_rows, 5)).copy()
