"""The work of each stream over time: one lane per stream, with few enough spans to keep and draw.

::

    kernels   |mm|add|mm| gelu |mm|      |all-gather|...    one row of ``Work`` each
                └──────┬──────┘
    join      |    mlp, forward   |      |all-gather|       those that do the same without a pause are one
    thin      no more spans than asked for: neighbours that begin in the same small part of the step are one
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.ledger import Ledger, Work, WorkKind
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Lane:
    """One stream."""

    stream: int
    group: str
    """The name of its process group; empty without a group or a name."""
    work: Work
    """Spans in order of time."""

    @property
    def busy_ns(self) -> int:
        return int(self.work.busy_ns.sum())

    def busy_by_kind(self) -> dict[WorkKind, int]:
        """Nanoseconds by kind of work, in the order of kinds."""
        sums = np.bincount(self.work.kind, weights=self.work.busy_ns, minlength=len(WorkKind)).tolist()
        return {kind: round(sums[kind]) for kind in WorkKind if sums[kind]}


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneWindow:
    """The step that lanes are about."""

    first_event: int
    begin_ns: int
    end_ns: int


def trace_lanes(ledger: Ledger, most_spans: int | None = None) -> list[Lane]:
    """The streams of the last step: the default one, others, then those of process groups. Empty without a work table.

    With ``most_spans``, no lane has more spans than that.
    """
    work = ledger.work
    lanes = []
    for stream in sorted(set(work.stream.tolist()), key=lambda stream: (stream < 0, abs(stream))):
        rows = np.flatnonzero(work.stream == stream)
        of_stream = take(work, rows[np.argsort(work.begin_ns[rows], kind="stable")])
        group = int(of_stream.group[0])
        thinned = of_stream if most_spans is None else thin(of_stream, most_spans, ledger.modules.parent)
        lanes.append(Lane(stream=stream, group=ledger.strings[group] if group >= 0 else "", work=thinned))
    return lanes


def find_window(ledger: Ledger) -> LaneWindow | None:
    """The last step, from its first event to the end of all work it issued; ``None`` if its work is unknown."""
    if not len(ledger.work) or not len(ledger.step_starts) or not ledger.info.has_clock:
        return None
    first = int(ledger.step_starts[-1])
    begin, end = int(ledger.events.time_ns[first]), max(int(ledger.work.end_ns.max()), int(ledger.events.time_ns[-1]))
    return LaneWindow(first_event=first, begin_ns=begin, end_ns=end) if end > begin else None


def join(work: Work, longest_pause_ns: int) -> Work:
    """Rows of one stream, in the order of time: those that do the same, with no more than such a pause between them, are one.

    Collectives do the same only if they are the same operator.
    """
    if not len(work):
        return work
    is_other = (np.diff(work.kind.astype(np.int64)) != 0) | (np.diff(work.module) != 0)
    is_other |= (np.diff(work.op) != 0) & (work.kind[1:] == WorkKind.COMMUNICATION)
    is_other |= work.begin_ns[1:] - work.end_ns[:-1] > longest_pause_ns
    return _put_together(work, np.flatnonzero(np.concatenate(([True], is_other))), np.empty(0, dtype=np.int64))


def thin(work: Work, most: int, module_parents: Array) -> Work:
    """Rows of one stream, in the order of time: of more than ``most``, neighbours that begin in the same part of it are one.

    There are ``most`` parts of equal length. Only where it must be, rows of several kinds are one.
    """
    for of_one_kind in (True, False):
        if len(work) <= most:
            break
        begin = work.begin_ns - work.begin_ns[0]
        part = begin // (int(begin[-1]) // most + 1)
        is_other = np.diff(part) != 0
        if of_one_kind:
            is_other |= np.diff(work.kind.astype(np.int64)) != 0
        work = _put_together(work, np.flatnonzero(np.concatenate(([True], is_other))), module_parents)
    return work


def take(work: Work, rows: Array) -> Work:
    """A selection of rows."""
    return Work(**{name: column[rows] for name, column in work.columns().items()})


def _put_together(work: Work, starts: Array, module_parents: Array) -> Work:
    """Merges the rows from each of ``starts`` to the next."""
    ends = np.append(starts[1:], len(work))
    first = take(work, starts)
    kind = np.where(_is_one(work.kind, starts), first.kind, WorkKind.OTHER).astype(np.uint8)
    module = first.module.copy()
    for row in np.flatnonzero(~_is_one(work.module, starts)).tolist():
        module[row] = _common_parent(set(work.module[starts[row] : ends[row]].tolist()), module_parents)
    return Work(
        stream=first.stream,
        group=first.group,
        kind=kind,
        module=module,
        op=_longest(work, starts, ends),
        begin_ns=first.begin_ns,
        end_ns=work.end_ns[ends - 1],
        busy_ns=np.add.reduceat(work.busy_ns, starts),
        num_kernels=np.add.reduceat(work.num_kernels, starts),
    )


def _is_one(column: Array, starts: Array) -> Array:
    """Per piece: true if the column is constant in it."""
    same: Array = np.minimum.reduceat(column, starts) == np.maximum.reduceat(column, starts)
    return same


def _longest(work: Work, starts: Array, ends: Array) -> Array:
    """Per piece: the operator that was busy longest."""
    num_ops = int(work.op.max()) + 1
    piece = np.repeat(np.arange(len(starts)), ends - starts)
    pairs, which = np.unique(piece * num_ops + work.op, return_inverse=True)
    busy = np.bincount(which, weights=work.busy_ns)
    order = np.lexsort((busy, pairs // num_ops))
    last_of_piece = np.append(np.flatnonzero(np.diff(pairs[order] // num_ops)), len(pairs) - 1)
    found: Array = (pairs[order][last_of_piece] % num_ops).astype(work.op.dtype)
    return found


def _common_parent(modules: set[int], parents: Array) -> int:
    """The innermost module that contains all of them, or -1. A parent's number is smaller than its children's."""
    while len(modules) > 1:
        innermost = max(modules)
        modules = (modules - {innermost}) | {int(parents[innermost])}
    return modules.pop()
