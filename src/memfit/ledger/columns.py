"""The tables of a run, and what can be computed from them alone: births, deaths, sizes, and the moment of each event."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from memfit.ledger.run_info import RunInfo
from memfit.ledger.schema import (
    Activity,
    Array,
    Blocks,
    Device,
    EventKind,
    Events,
    Levels,
    Modules,
    Phase,
    Returns,
    Roles,
    Scopes,
    Slack,
    Work,
)


@dataclass(frozen=True, eq=False)
class Columns:
    """The tables of ``memfit.ledger.schema``, and indices between them.

    Indices into ``events`` serve as time throughout: ``birth`` and ``death`` of a block, ``scope_enter`` and ``scope_exit`` of a
    scope. What never happened has the index ``len(events)``. ``Ledger`` adds what is decided from these: categories, moments, laws.
    """

    events: Events
    blocks: Blocks
    scopes: Scopes
    modules: Modules
    roles: Roles
    strings: tuple[str, ...]
    devices: tuple[Device, ...]
    info: RunInfo
    slack: Slack = field(default_factory=lambda: Slack.from_rows([]))
    returns: Returns = field(default_factory=lambda: Returns.from_rows([]))
    levels: Levels = field(default_factory=lambda: Levels.from_rows([]))
    work: Work = field(default_factory=lambda: Work.from_rows([]))
    activity: Activity = field(default_factory=lambda: Activity.from_rows([]))

    @cached_property
    def birth(self) -> Array:
        """Per block: the event that allocated it."""
        return self._index_of(EventKind.ALLOC, len(self.blocks))

    @cached_property
    def death(self) -> Array:
        """Per block: the event that freed it, ``len(events)`` while it lives."""
        return self._index_of(EventKind.FREE, len(self.blocks))

    @cached_property
    def scope_enter(self) -> Array:
        return self._index_of(EventKind.ENTER, len(self.scopes))

    @cached_property
    def scope_exit(self) -> Array:
        return self._index_of(EventKind.EXIT, len(self.scopes))

    @cached_property
    def step_starts(self) -> Array:
        """The events at which steps began: 0, 1, ..., or those of them that were kept."""
        return np.flatnonzero(self.events.kind == EventKind.STEP)

    @cached_property
    def step_numbers(self) -> Array:
        """The numbers of the steps that begin at ``step_starts``."""
        return self.events.subject[self.step_starts]

    @cached_property
    def block_phase(self) -> Array:
        """Per block: the ``Phase`` it was born in, -1 outside all."""
        phase = np.append(self.scopes.phase.astype(np.int64), -1)
        return phase[self.blocks.scope]

    @cached_property
    def block_module(self) -> Array:
        """Per block: the module it was born in, -1 outside all."""
        return np.append(self.scopes.module.astype(np.int64), -1)[self.blocks.scope]

    @cached_property
    def memory_events(self) -> Array:
        """The indices of the events that change how much memory is in use."""
        return np.flatnonzero(self.events.kind <= EventKind.RESIZE)

    @cached_property
    def deltas(self) -> Array:
        """Per event: the change of memory in use, in bytes as the block's device rounds them."""
        where = self.memory_events
        block = self.events.subject[where]
        after = self._given(block, self.events.size[where])
        order = np.argsort(block, kind="stable")
        before = np.zeros_like(after)
        before[order[1:]] = np.where(block[order[1:]] == block[order[:-1]], after[order[:-1]], 0)
        deltas = np.zeros(len(self.events), dtype=np.int64)
        deltas[where] = after - before
        return deltas

    @cached_property
    def block_peak_bytes(self) -> Array:
        """Per block: the most bytes it ever held, rounded as its device does."""
        where = self.memory_events
        peak = np.zeros(len(self.blocks), dtype=np.int64)
        np.maximum.at(peak, self.events.subject[where], self.events.size[where])
        return self._given(np.arange(len(self.blocks)), peak)

    @cached_property
    def device_peak_bytes(self) -> tuple[int, ...]:
        """Per device: the peak of memory in use."""
        where = self.memory_events
        device, deltas = self.blocks.device[self.events.subject[where]], self.deltas[where]
        return tuple(int(np.cumsum(deltas[device == number]).max(initial=0)) for number in range(len(self.devices)))

    @cached_property
    def device_order(self) -> tuple[int, ...]:
        """The devices in order of importance: GPUs first, then by peak."""
        peaks = self.device_peak_bytes
        return tuple(sorted(range(len(peaks)), key=lambda number: (not self.devices[number].is_cuda, -peaks[number])))

    @property
    def main_device(self) -> int | None:
        """The most important device, which all figures are about unless another is named; ``None`` in an empty ledger."""
        return self.device_order[0] if self.device_order else None

    def block_bytes_at(self, event: int) -> Array:
        """Per block: the bytes it held right after ``event``."""
        events = self.memory_events[self.memory_events <= event]
        held = np.zeros(len(self.blocks), dtype=np.int64)
        np.add.at(held, self.events.subject[events], self.deltas[events])
        return held

    def module_path(self, module: int) -> str:
        """The fully qualified name of a module; the root's own is its class in brackets."""
        if module < 0:
            return ""
        return self.strings[self.modules.path[module]] or f"({self.strings[self.modules.kind[module]]})"

    def _given(self, block: Array, size: Array) -> Array:
        """The bytes that a device allocates for ``size`` bytes of each block: rounded up, plus the recorded slack."""
        granularity = np.array([device.granularity for device in self.devices] or [1], dtype=np.int64)
        quantum = granularity[self.blocks.device[block]]
        given: Array = -(-size // quantum) * quantum
        if len(self.slack):
            slack = np.zeros(len(self.blocks), dtype=np.int64)
            slack[self.slack.block] = self.slack.size
            given = given + np.where(size > 0, slack[block], 0)
        return given

    def _index_of(self, kind: EventKind, count: int) -> Array:
        index = np.full(count, len(self.events), dtype=np.int64)
        where = np.flatnonzero(self.events.kind == kind)
        subject = self.events.subject[where]
        inside = (subject >= 0) & (subject < count)
        index[subject[inside]] = where[inside]
        return index


INIT: Final = -1
"""The step number for everything before the first step."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When something happened, and what ran."""

    step: int
    """The step it fell in, ``INIT`` before the first."""
    phase: Phase | None
    """What ran, ``None`` outside all phases."""
    module: str
    """The path of the module that ran, empty outside all modules."""

    @property
    def in_a_step(self) -> bool:
        """Did a step run? If not, it was before the first."""
        return self.step != INIT

    @property
    def running(self) -> str:
        """What ran, as people write it: ``backward of layers.3``; empty outside all phases."""
        if self.phase is None:
            return ""
        return f"{self.phase.label} of {self.module}" if self.module else self.phase.label

    @property
    def label(self) -> str:
        """The moment, as people write it: ``step 1, backward of layers.3``."""
        when = f"step {self.step}" if self.in_a_step else "before the first step"
        return f"{when}, {self.running}" if self.running else when

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "phase": None if self.phase is None else self.phase.name.lower(), "module": self.module}


def moments_at(ledger: Columns, events: Array) -> list[Moment]:
    """The moment of each event. Events of the same moment share one object."""
    steps = steps_at(ledger, events)
    pairs, which = np.unique(np.stack((steps, running_at(ledger, events))), axis=1, return_inverse=True)
    found = [_moment(ledger, step, scope) for step, scope in pairs.T.tolist()]
    return [found[i] for i in which.ravel().tolist()]


def _moment(ledger: Columns, step: int, scope: int) -> Moment:
    if scope < 0:
        return Moment(step=step, phase=None, module="")
    phase, module = Phase(ledger.scopes.phase[scope]), ledger.module_path(int(ledger.scopes.module[scope]))
    return Moment(step=step, phase=phase, module=module)


def steps_at(ledger: Columns, events: Array) -> Array:
    """Per event: the step it fell in, ``INIT`` before the first."""
    return np.append(ledger.step_numbers, INIT)[np.searchsorted(ledger.step_starts, events, side="right") - 1]


def running_at(ledger: Columns, events: Array) -> Array:
    """Per event: the innermost scope it fell in, -1 outside all: the scope last entered, or the one around the scope last left."""
    kind = ledger.events.kind
    marks = np.flatnonzero((kind == EventKind.ENTER) | (kind == EventKind.EXIT))
    scope = ledger.events.subject[marks]
    running = np.where(kind[marks] == EventKind.ENTER, scope, ledger.scopes.parent[scope])
    return np.append(running, -1)[np.searchsorted(marks, events, side="right") - 1]
