"""The highest moments of a recorded step, and what checkpointing would take away from each or add to it.

::

    ledger ──> pieces between two entries or exits of modules ──> PiecePeak
                                                                    what is in use then, by kind
                                                                    which modules hold activations of a forward that is over, and
                                                                    whose backward has not begun: what they discard is missing then

A module that runs again does so when its backward begins, so from then on nothing of it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypedDict

import numpy as np

from memfit.analysis.timeline import trace_categories, trace_total
from memfit.compat.trackers.tracker_snapshots import class_name
from memfit.ledger import Category, Ledger, Phase
from memfit.ledger.columns import running_at
from memfit.ledger.schema import Array, EventKind

Levels = Mapping[str, Array]
"""By kind: the bytes in use after each event."""

_KINDS: Final = {
    Category.PARAMETER: "parameters",
    Category.SHARDED_PARAMETER: "parameters",
    Category.GRADIENT: "gradients",
    Category.SHARDED_GRADIENT: "gradients",
    Category.OPTIMIZER_STATE: "optimizer",
    Category.OPTIMIZER_TEMPORARY: "optimizer",
}
"""What sharding spreads over ranks. Everything else is a rank's own."""


class PiecePeak(TypedDict):
    """The highest of a piece of the run. All figures but ``total`` are each kind's own highest in it."""

    module: str
    """The innermost module that runs, empty outside all."""
    phase: str
    """``forward``, ``backward``, ``optimizer``; empty outside all."""
    total: int
    parameters: int
    gradients: int
    optimizer: int
    rest: int
    held: list[str]
    """The modules that wait for their backward: what they discard is not in use."""
    again: str
    """The module that begins its backward, and would run again first if it discarded something; empty for none."""
    excess: int
    """How far above its end the forward of that module rises."""


def moments_of(ledger: Ledger, device: int, first_event: int, names: Sequence[str]) -> list[PiecePeak]:
    """The moments from an event on. ``names`` are the modules that could discard something."""
    starts = _starts_of_pieces(ledger, first_event)
    if not len(starts):
        return []
    levels = _levels(ledger, device)
    over, begun = _ends_and_beginnings(ledger, names)
    pieces = {kind: np.maximum.reduceat(level, starts) for kind, level in levels.items()}
    held = _held(over, begun, starts)
    found: dict[tuple[str, str, tuple[str, ...]], PiecePeak] = {}
    for i, scope in enumerate(running_at(ledger, starts).tolist()):
        module, phase = _where(ledger, scope)
        moment = _moment(pieces, i, module, phase, held[i])
        known = found.setdefault((module, phase, tuple(held[i])), moment)
        for kind in levels:
            known[kind] = max(known[kind], moment[kind])  # type: ignore[literal-required]
    return [*found.values(), *_recomputations(ledger, device, first_event, levels, over, begun)]


def _recomputations(
    ledger: Ledger, device: int, first_event: int, levels: Levels, over: Mapping[str, list[int]], begun: Mapping[str, list[int]]
) -> Iterator[PiecePeak]:
    excess = _forward_excess(ledger, device, first_event)
    for name, events in begun.items():
        for _, event in _waits(over[name], events):
            if event >= first_event:
                held = _held(over, begun, np.array([event]))[0]
                moment = _moment(levels, event, name, "backward", held)
                moment["again"], moment["excess"] = name, excess.get(name, 0)
                yield moment


def _forward_excess(ledger: Ledger, device: int, first_event: int) -> dict[str, int]:
    """By module: how far its forward rises above what it leaves behind. Running it again rises as far."""
    scopes = np.array(_scopes(ledger, Phase.FORWARD), dtype=np.int64)
    scopes = scopes[ledger.scope_enter[scopes] >= first_event]
    total = trace_total(ledger, device)
    begin, end = ledger.scope_enter[scopes], np.minimum(ledger.scope_exit[scopes], len(ledger.events) - 1)
    above = total.at(total.highest_between(begin, end)) - total.at(end) if len(scopes) else scopes
    found: dict[str, int] = {}
    for scope, size in zip(scopes.tolist(), above.tolist(), strict=True):
        name = class_name(ledger, int(ledger.scopes.module[scope]))
        found[name] = max(found.get(name, 0), size)
    return found


def _starts_of_pieces(ledger: Ledger, first_event: int) -> Array:
    kind = ledger.events.kind
    marks = np.flatnonzero((kind == EventKind.ENTER) | (kind == EventKind.EXIT))
    starts = np.unique(np.concatenate(([max(first_event, 0)], marks[marks >= first_event])))
    return starts[starts < len(ledger.events)].astype(np.int64)


def _levels(ledger: Ledger, device: int) -> dict[str, Array]:
    events = np.arange(len(ledger.events))
    levels = {kind: np.zeros(len(events), dtype=np.int64) for kind in ("parameters", "gradients", "optimizer", "rest")}
    for category, timeline in trace_categories(ledger, device).items():
        levels[_KINDS.get(category, "rest")] += timeline.at(events)
    return {**levels, "total": sum(levels.values(), np.zeros(len(events), dtype=np.int64))}


def _ends_and_beginnings(ledger: Ledger, names: Sequence[str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """By module: when its forwards ended and when its backwards began."""
    over: dict[str, list[int]] = {name: [] for name in names}
    begun: dict[str, list[int]] = {name: [] for name in names}
    for phase, events, found in ((Phase.FORWARD, ledger.scope_exit, over), (Phase.BACKWARD, ledger.scope_enter, begun)):
        for scope in _scopes(ledger, phase):
            name = class_name(ledger, int(ledger.scopes.module[scope]))
            if name in found:
                found[name].append(int(events[scope]))
    return {name: sorted(events) for name, events in over.items()}, {name: sorted(events) for name, events in begun.items()}


def _held(over: Mapping[str, list[int]], begun: Mapping[str, list[int]], events: Array) -> list[list[str]]:
    """Per event: the modules that wait for their backward."""
    held: list[list[str]] = [[] for _ in events]
    for name in over:
        for begin, end in _waits(over[name], begun[name]):
            for i in range(*np.searchsorted(events, (begin, end)).tolist()):
                held[i].append(name)
    return held


def _waits(over: Sequence[int], begun: Sequence[int]) -> Iterator[tuple[int, int]]:
    """From the last end of forwards that follow each other to the first beginning of a backward after it."""
    last_end, previous = -1, -1
    ends = iter([*over, np.inf])
    end = next(ends)
    for beginning in begun:
        while end < beginning:
            last_end, end = int(end), next(ends)
        if last_end > previous:
            yield last_end, beginning
        previous = beginning


def _scopes(ledger: Ledger, phase: Phase) -> list[int]:
    return [int(scope) for scope in np.flatnonzero((ledger.scopes.phase == phase) & (ledger.scopes.module >= 0))]


def _where(ledger: Ledger, scope: int) -> tuple[str, str]:
    if scope < 0:
        return "", ""
    module = int(ledger.scopes.module[scope])
    return (class_name(ledger, module) if module >= 0 else ""), Phase(ledger.scopes.phase[scope]).label


def _moment(levels: Levels, i: int, module: str, phase: str, held: list[str]) -> PiecePeak:
    sizes = {kind: int(level[i]) for kind, level in levels.items()}
    return PiecePeak(
        module=module,
        phase=phase,
        total=sizes["total"],
        parameters=sizes["parameters"],
        gradients=sizes["gradients"],
        optimizer=sizes["optimizer"],
        rest=sizes["rest"],
        held=held,
        again="",
        excess=0,
    )
