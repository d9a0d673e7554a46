"""The finished ledger: files, categories, moments and laws."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from memfit.drawing import Drawn
from memfit.errors import LedgerLawError
from memfit.ledger import storage
from memfit.ledger.categories import decide_categories
from memfit.ledger.columns import Columns, Moment, moments_at
from memfit.ledger.schema import TABLES, Array, EventKind, Table, Work


@dataclass(frozen=True, eq=False)
class Ledger(Columns, Drawn):
    """A run as columns. See ``memfit.ledger.schema`` for the tables and ``memfit.ledger.columns`` for what follows from them."""

    def __repr__(self) -> str:
        rank = f", rank {self.info.rank} of {self.info.world_size}" if self.info.world_size > 1 else ""
        return f"Ledger({self.info.source}, {len(self.step_starts)} steps, {len(self.events):,} events{rank})"

    # -- files ---------------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Writes the ledger to one file that ``load`` and any safetensors reader can open."""
        tables = {kind.NAME: cast(Table, getattr(self, kind.NAME)) for kind in TABLES}
        storage.save(Path(path), tables, self.strings, self.devices, self.info)

    @classmethod
    def load(cls, path: Path | str) -> Ledger:
        """Reads a ledger, finished or cut short. Raises ``LedgerFormatError`` if the file is not a ledger."""
        path = Path(path)
        contents = storage.load(path)
        tables: dict[str, Any] = {kind.NAME: table for kind, table in storage.validated_tables(path, contents).items()}
        return cls(**tables, strings=tuple(contents.strings), devices=tuple(contents.devices), info=contents.info)

    # -- what follows --------------------------------------------------------------------------------------------------------

    @cached_property
    def categories(self) -> Array:
        """Per block: its ``Category``."""
        return decide_categories(self)

    def moment_at(self, event: int) -> Moment:
        """The step, the phase and the module that an event fell in."""
        return moments_at(self, np.array([event]))[0]

    # -- laws ----------------------------------------------------------------------------------------------------------------

    def check(self) -> Ledger:
        """Returns the ledger itself; raises ``LedgerLawError`` if its events contradict each other."""
        found = _violations(self)
        if found:
            raise LedgerLawError(found)
        return self

    def same_as(self, other: Ledger) -> bool:
        """True if both ledgers are exactly equal."""
        words = ("strings", "devices", "info")
        if any(getattr(self, word) != getattr(other, word) for word in words):
            return False
        return all(
            np.array_equal(getattr(getattr(self, kind.NAME), f.name), getattr(getattr(other, kind.NAME), f.name))
            for kind in TABLES
            for f in fields(kind)
        )


def _violations(ledger: Columns) -> list[str]:
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
    if len(ledger.slack) and (ledger.slack.size.min() < 0 or np.bincount(ledger.slack.block).max() > 1):
        found.append("a block has a negative slack, or more than one")
    if len(ledger.returns) and (ledger.returns.events_later.min() < 1 or np.bincount(ledger.returns.block).max() > 1):
        found.append("a block's memory comes back before it is freed, or more than once")
    if (ledger.levels.last_step < ledger.levels.first_step).any():
        found.append("a level ends before it begins")
    found += _one_after_the_other(ledger.work)
    if (np.diff(ledger.activity.event, prepend=0, append=len(events)) < 0).any():
        found.append("what a script did is not in the order of its events")
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


def _one_after_the_other(work: Work) -> list[str]:
    """Violations of the law that a stream does one thing at a time, and is busy no longer than that takes."""
    if (work.begin_ns < 0).any() or (work.end_ns < work.begin_ns).any() or (work.num_kernels < 1).any():
        return ["work begins before the run, ends before it begins, or has no kernel"]
    if (work.busy_ns < 0).any() or (work.busy_ns > work.end_ns - work.begin_ns).any():
        return ["a stream is busy for longer than its work lasts"]
    order = np.lexsort((work.end_ns, work.begin_ns, work.stream))
    stream, begin, end = work.stream[order], work.begin_ns[order], work.end_ns[order]
    if ((stream[1:] == stream[:-1]) & (begin[1:] < end[:-1])).any():
        return ["a stream does two things at once"]
    return []
