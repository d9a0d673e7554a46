"""The words that every view has for moments, steps and spans of time."""

from __future__ import annotations

from memfit.analysis.lanes import Lane
from memfit.ledger import INIT, Moment, WorkKind
from memfit.views.escaping import printable

_DURATIONS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))


def name_moment(moment: Moment) -> str:
    """When something was, in a sentence: ``in step 1, backward of layers.3``."""
    return printable(f"in {moment.label}" if moment.in_a_step else moment.label)


def name_running(moment: Moment) -> str:
    """What ran: ``backward of layers.3``; empty outside all phases."""
    return printable(moment.running)


def name_step(step: int) -> str:
    return "init" if step == INIT else str(step)


def name_op(op: str) -> str:
    """``aten.mm`` for ``aten.mm.default``: the usual overload goes without saying."""
    return printable(op.removesuffix(".default"))


def count(number: int, noun: str) -> str:
    """``1 step``, ``1,200 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_duration(time_ns: int) -> str:
    """A span of time in the largest unit that keeps it at or above one: ``1.25 ms``."""
    for unit, size in _DURATIONS:
        if time_ns >= size:
            return f"{time_ns / size:,.2f} {unit}"
    return f"{time_ns} ns"


def name_lane(lane: Lane) -> str:
    """``default stream``, ``stream 3``, ``communication (mesh_tp)``."""
    if lane.stream >= 0:
        return f"stream {lane.stream}" if lane.stream else "default stream"
    number = f" {-lane.stream}" if lane.stream < -1 and not lane.group else ""
    return printable(f"communication{number}" + (f" ({lane.group})" if lane.group else ""))


NAMED_BY_OPERATOR = (WorkKind.COMMUNICATION, WorkKind.COPY)
"""Work whose operator says more than its kind."""


def name_work(kind: WorkKind, module: str, operator: str) -> str:
    """What a stream did: ``backward of layers.3``, ``_allgather_base_ of layers.3``."""
    what = operator if kind in NAMED_BY_OPERATOR else kind.label
    return printable(f"{what} of {module}" if module else what)
