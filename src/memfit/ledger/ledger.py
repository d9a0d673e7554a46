"""The finished ledger, what follows from it, and its laws."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from memfit.errors import LedgerLawError
from memfit.ledger import storage
from memfit.ledger.categories import decide_categories
from memfit.ledger.schema import TABLES, Array, Blocks, Device, EventKind, Events, Modules, Roles, RunInfo, Scopes, Table


@dataclass(frozen=True, eq=False)
class Ledger:
    """A run as columns. See ``memfit.ledger.schema`` for the tables.

    Indices into ``events`` serve as time throughout: ``birth`` and ``death`` of a block, ``scope_enter`` and ``scope_exit`` of a
    scope. What never happened has the index ``len(events)``.
    """

    events: Events
    blocks: Blocks
    scopes: Scopes
    modules: Modules
    roles: Roles
    strings: tuple[str, ...]
    devices: tuple[Device, ...]
    info: RunInfo

    # -- files ---------------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Writes the ledger to one file that ``load`` and any safetensors reader can open."""
        tables = {kind.NAME: cast(Table, getattr(self, kind.NAME)) for kind in TABLES}
        storage.save(Path(path), tables, self.strings, self.devices, self.info)

    @classmethod
    def load(cls, path: Path | str) -> Ledger:
        """Reads a ledger, finished or cut short. A file that is no ledger raises ``LedgerFormatError``."""
        path = Path(path)
        contents = storage.load(path)
        tables: dict[str, Any] = {kind.NAME: table for kind, table in storage.validated_tables(path, contents).items()}
        return cls(**tables, strings=tuple(contents.strings), devices=tuple(contents.devices), info=contents.info)

    # -- what follows --------------------------------------------------------------------------------------------------------

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
        """The events at which steps 0, 1, ... began."""
        return np.flatnonzero(self.events.kind == EventKind.STEP)

    @cached_property
    def categories(self) -> Array:
        """Per block: its ``Category``."""
        return decide_categories(self)

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
        """Per event: by how many bytes, rounded as the block's device rounds, the memory in use changed."""
        where = self.memory_events
        block = self.events.subject[where]
        granularity = np.array([device.granularity for device in self.devices] or [1], dtype=np.int64)
        quantum = granularity[self.blocks.device[block]]
        after = -(-self.events.size[where] // quantum) * quantum
        order = np.argsort(block, kind="stable")
        before = np.zeros_like(after)
        before[order[1:]] = np.where(block[order[1:]] == block[order[:-1]], after[order[:-1]], 0)
        deltas = np.zeros(len(self.events), dtype=np.int64)
        deltas[where] = after - before
        return deltas

    @cached_property
    def block_peak_bytes(self) -> Array:
        """Per block: the most it ever held, rounded as its device rounds."""
        where = self.memory_events
        granularity = np.array([device.granularity for device in self.devices] or [1], dtype=np.int64)
        peak = np.zeros(len(self.blocks), dtype=np.int64)
        np.maximum.at(peak, self.events.subject[where], self.events.size[where])
        quantum = granularity[self.blocks.device]
        return -(-peak // quantum) * quantum

    def module_path(self, module: int) -> str:
        """The fully qualified name of a module; the root's own is its class in brackets."""
        if module < 0:
            return ""
        return self.strings[self.modules.path[module]] or f"({self.strings[self.modules.kind[module]]})"

    def _index_of(self, kind: EventKind, count: int) -> Array:
        index = np.full(count, len(self.events), dtype=np.int64)
        where = np.flatnonzero(self.events.kind == kind)
        subject = self.events.subject[where]
        inside = (subject >= 0) & (subject < count)
        index[subject[inside]] = where[inside]
        return index

    def _repr_html_(self) -> str:
        """The ledger in a notebook."""
        from memfit.views.notebook import notebook_html

        return notebook_html(self)

    # -- laws ----------------------------------------------------------------------------------------------------------------

    def check(self) -> Ledger:
        """Raises ``LedgerLawError`` unless the events agree with each other; gives the ledger back."""
        violations = list(_violations(self))
        if violations:
            raise LedgerLawError(violations)
        return self

    def same_as(self, other: Ledger) -> bool:
        """Do both say exactly the same?"""
        words = ("strings", "devices", "info")
        if any(getattr(self, word) != getattr(other, word) for word in words):
            return False
        return all(
            np.array_equal(getattr(getattr(self, kind.NAME), f.name), getattr(getattr(other, kind.NAME), f.name))
            for kind in TABLES
            for f in fields(kind)
        )


def _violations(ledger: Ledger) -> list[str]:
    events, kind, subject = ledger.events, ledger.events.kind, ledger.events.subject
    found = []
    memory = ledger.memory_events
    about_blocks = np.concatenate((memory, np.flatnonzero(kind == EventKind.STREAM)))
    emptied = subject[kind == EventKind.EMPTY_CACHE]
    scoped = np.flatnonzero((kind == EventKind.ENTER) | (kind == EventKind.EXIT))
    if len(about_blocks) and not (subject[about_blocks].min() >= 0 and subject[about_blocks].max() < len(ledger.blocks)):
        return ["an event names a block that does not exist"]
    if len(emptied) and not (emptied.min() >= 0 and emptied.max() < len(ledger.devices)):
        return ["an event names a device that does not exist"]
    if len(scoped) and not (subject[scoped].min() >= 0 and subject[scoped].max() < len(ledger.scopes)):
        return ["an event names a scope that does not exist"]
    if len(events) and events.size.min() < 0:
        found.append("a size is negative")
    if events.size[kind == EventKind.FREE].any():
        found.append("a block is freed and yet has a size")
    found += _once(kind, subject, EventKind.ALLOC, len(ledger.blocks), exactly=True)
    found += _once(kind, subject, EventKind.FREE, len(ledger.blocks), exactly=False)
    found += _once(kind, subject, EventKind.ENTER, len(ledger.scopes), exactly=True)
    found += _once(kind, subject, EventKind.EXIT, len(ledger.scopes), exactly=False)
    if found:
        return found
    resized = memory[kind[memory] == EventKind.RESIZE]
    if (ledger.death <= ledger.birth).any():
        found.append("a block is freed before it is allocated")
    if ((resized < ledger.birth[subject[resized]]) | (resized > ledger.death[subject[resized]])).any():
        found.append("a block is resized before its allocation or after it is freed")
    if (ledger.scope_exit <= ledger.scope_enter).any():
        found.append("a scope is left before it is entered")
    nested = np.flatnonzero(ledger.scopes.parent >= 0)
    parent = ledger.scopes.parent[nested]
    if (parent >= nested).any() or (ledger.scope_exit[parent] < ledger.scope_exit[nested]).any():
        found.append("a scope outlives the scope around it")
    if ((ledger.modules.parent >= np.arange(len(ledger.modules))) & (ledger.modules.parent >= 0)).any():
        found.append("a module comes before its parent")
    for number in range(len(ledger.devices)):
        where = memory[ledger.blocks.device[subject[memory]] == number]
        if len(where) and np.cumsum(ledger.deltas[where]).min() < 0:
            found.append(f"memory in use on {ledger.devices[number].name} falls below zero")
    return found


def _once(kind: Array, subject: Array, event: EventKind, count: int, *, exactly: bool) -> list[str]:
    times = np.bincount(subject[kind == event], minlength=count)
    what = "block" if event in (EventKind.ALLOC, EventKind.FREE) else "scope"
    if len(times) and times.max() > 1:
        return [f"a {what} has more than one {event.name}"]
    if exactly and len(times) and times.min() < 1:
        return [f"a {what} has no {event.name}"]
    return []
