"""Stretches of a run as the ledger has them, counted from where each began, and how they are written again.

::

    ledger   ... │ enter model  alloc 812  alloc 813  free 812  exit model │ ...
    LedgerWindow         enter 0      alloc 0    alloc 1    free 0    exit 0          the same for every call that is alike
    written        enter 95     alloc 901  alloc 902  free 901  exit 95         with the numbers that are next, in one piece
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import torch

from memfit.ledger.cutting import ABOUT_SCOPES, rows
from memfit.ledger.schema import Array, Blocks, Category, EventKind, Events, Roles, Scopes
from memfit.predict.clock import TimedBuilder
from memfit.timing.timeline import Stretch, TimelineState


class RunReason(Enum):
    """Why a call is run, and not written down."""

    ARGUMENTS = "arguments"
    """It takes something that cannot be compared, or a tensor that gradients flow through."""
    COMPILED = "compiled"
    """It is compiled."""
    VALUES = "values"
    """Values decide what it does."""
    CHANGES = "changes"
    """It changes the module itself."""
    RESULT = "result"
    """It gives something that cannot be made again."""
    KEEPS = "keeps"
    """It keeps or frees something that is neither its graph's nor a gradient."""
    BACKWARD = "backward"
    """Its backward pass cannot be told from others, or is not the usual one."""
    EVENTS = "events"
    """It does more than to ask for memory and to give it back: empties the cache, meets blocks that were there before."""


class NotRepeatableError(Exception):
    """Something about a call cannot be compared, or must not be repeated."""

    def __init__(self, reason: RunReason) -> None:
        super().__init__(reason)
        self.reason = reason


class SubjectSpace(IntEnum):
    """What an event's subject is counted among."""

    BLOCK = 0
    """Blocks that came in the window."""
    SCOPE = 1
    """Scopes that began in it."""
    EARLIER = 2
    """Blocks of the window before: what a forward left for its backward."""
    GIVEN = 3
    """Blocks that the writer of the window names."""
    LASTING = 4
    """Blocks that are there before, between and after all windows, by their own numbers; they are resized and no more."""


@dataclass(frozen=True, eq=False)
class Place:
    """A place in a ledger that is being written."""

    counts: dict[str, int]
    num_events: int
    num_blocks: int
    num_scopes: int
    time_ns: int
    moment: TimelineState
    num_unpaid: int


class Tape:
    """Takes windows out of a ledger, and writes them again."""

    def __init__(self, builder: TimedBuilder) -> None:
        self.builder, self.timeline = builder, builder.timeline

    def place(self) -> Place:
        builder = self.builder
        return Place(
            builder.mark(),
            builder.num_events,
            builder.num_blocks,
            builder.num_scopes,
            builder.elapsed_ns(),
            self.timeline.moment(),
            builder.num_unpaid,
        )

    def stretch_since(self, start: Place) -> Stretch:
        return self.timeline.stretch_since(start.moment)

    def freed(self, start: Place, end: Place) -> list[int]:
        """The blocks that were freed from one place to another, in order."""
        events = self.builder.between(start.counts, end.counts)["events"]
        found: list[int] = events.subject[events.kind == EventKind.FREE].tolist()
        return found

    def window(
        self,
        start: Place,
        end: Place,
        stretch: Stretch,
        *,
        outer_scope: int = -1,
        earlier: range = range(0),
        given: Mapping[int, int] | None = None,
    ) -> LedgerWindow:
        """What was written from one place to another. ``earlier`` are the blocks of the window before, ``given`` has the numbers
        of those that are named. The scopes that it left open are closed at its end."""
        tables = self.builder.between(start.counts, end.counts)
        events: Events = _without_exits(tables["events"], start.num_scopes)
        if len(tables["prelude"]) or len(tables["modules"]) or len(tables["slack"]) or len(tables["returns"]):
            raise NotRepeatableError(RunReason.EVENTS)
        if np.isin(events.kind, (EventKind.STEP, EventKind.EMPTY_CACHE)).any():
            raise NotRepeatableError(RunReason.EVENTS)
        is_scope = np.isin(events.kind, ABOUT_SCOPES)
        own = np.where(is_scope, start.num_scopes, start.num_blocks)
        subject, space = events.subject - own, np.where(is_scope, SubjectSpace.SCOPE, SubjectSpace.BLOCK).astype(np.uint8)
        outside = np.flatnonzero(subject < 0)
        for event in outside.tolist():
            number = int(events.subject[event])
            if is_scope[event]:
                raise NotRepeatableError(RunReason.EVENTS)
            if events.kind[event] in (EventKind.RESIZE, EventKind.STREAM) and number not in earlier:
                subject[event], space[event] = number, SubjectSpace.LASTING
            elif number in earlier:
                subject[event], space[event] = number - earlier.start, SubjectSpace.EARLIER
            elif given is not None and number in given:
                subject[event], space[event] = given[number], SubjectSpace.GIVEN
            else:
                raise NotRepeatableError(RunReason.KEEPS)
        scopes: Scopes = tables["scopes"]
        kind, size = events.kind, events.size
        open_scopes = _left_open(kind, subject)
        after_ns = events.time_ns - start.time_ns
        if open_scopes:
            count = len(open_scopes)
            kind = np.append(kind, np.full(count, EventKind.EXIT, kind.dtype))
            subject = np.append(subject, np.array(open_scopes, dtype=np.int64))
            space = np.append(space, np.full(count, SubjectSpace.SCOPE, np.uint8))
            size = np.append(size, np.zeros(count, np.int64))
            after_ns = np.append(after_ns, np.full(count, end.time_ns - start.time_ns))
        blocks: Blocks = tables["blocks"]
        roles: Roles = tables["roles"]
        spans = stretch.spans
        return LedgerWindow(
            kind=kind,
            subject=subject,
            space=space,
            blocks=replace(blocks, scope=_counted_from(blocks.scope, start.num_scopes, outer_scope)),
            scopes=replace(scopes, parent=_counted_from(scopes.parent, start.num_scopes, outer_scope)),
            roles=replace(roles, block=_counted_from(roles.block, start.num_blocks, -1)),
            size=size,
            after_ns=after_ns,
            num_unpaid=end.num_unpaid - start.num_unpaid,
            stretch=replace(
                stretch, spans=replace(spans, scope=np.where(spans.scope >= start.num_scopes, spans.scope - start.num_scopes, -1))
            ),
        )

    def write(
        self,
        window: LedgerWindow,
        sizes: Array,
        *,
        outer_scope: int = -1,
        first_earlier: int = 0,
        given: Sequence[int] = (),
        pauses: Sequence[tuple[int, Any]] = (),
    ) -> Written:
        """Writes a window with these sizes. ``pauses`` are events, in order, that are left out: what stands beside each is called
        in its place."""
        builder, timeline = self.builder, self.timeline
        began, began_ns = builder.mark(), builder.elapsed_ns()
        written = Written(builder.num_blocks, builder.num_scopes, outer_scope)
        timeline.skip(window.stretch, written.first_scope, outer_scope)
        builder.leave_unpaid(window.num_unpaid)
        time_ns = np.minimum(began_ns + window.after_ns, builder.elapsed_ns())
        bases = np.array([written.first_block, written.first_scope, first_earlier, 0, 0], dtype=np.int64)
        subject = window.subject + bases[window.space]
        for event in window.where_given.tolist():
            subject[event] = given[window.subject[event]]
        events = Events(window.kind, subject, sizes, time_ns)
        blocks = replace(window.blocks, scope=_placed(window.blocks.scope, written.first_scope, outer_scope))
        scopes = replace(window.scopes, parent=_placed(window.scopes.parent, written.first_scope, outer_scope))
        roles = replace(window.roles, block=window.roles.block + written.first_block)
        first = 0
        for event, instead in (*pauses, (len(events), None)):
            part = rows(events, slice(first, event))
            num_blocks, num_scopes = (int(np.count_nonzero(part.kind == kind)) for kind in (EventKind.ALLOC, EventKind.ENTER))
            of_part = rows(blocks, slice(num_blocks)), rows(scopes, slice(num_scopes)), _NO_ROLES if instead is not None else roles
            blocks, scopes = rows(blocks, slice(num_blocks, None)), rows(scopes, slice(num_scopes, None))
            try:
                builder.append(part, *of_part)
            except torch.OutOfMemoryError:
                self._clean_up(began, written.first_block)
                raise
            first = event + 1
            if instead is not None:
                with builder.as_of(int(time_ns[event])):
                    instead()
        return written

    def _clean_up(self, began: dict[str, int], first_block: int) -> None:
        """An exception leaves the window: what it has made is freed, and its scopes end."""
        events = self.builder.between(began, self.builder.mark())["events"]
        freed = set(events.subject[events.kind == EventKind.FREE].tolist())
        for block in range(first_block, self.builder.num_blocks):
            if block not in freed:
                self.builder.free(block)
        for scope in _left_open(events.kind, events.subject):
            self.builder.exit(scope)


@dataclass(frozen=True, eq=False)
class LedgerWindow:
    """A stretch of a ledger. What does not depend on sizes comes first."""

    kind: Array
    subject: Array
    space: Array
    blocks: Blocks
    scopes: Scopes
    roles: Roles
    size: Array
    after_ns: Array
    stretch: Stretch
    num_unpaid: int
    """How many operators on distributed tensors it leaves to be paid for, beyond those that it found."""

    @cached_property
    def where_given(self) -> Array:
        return np.flatnonzero(self.space == SubjectSpace.GIVEN)

    @cached_property
    def digest(self) -> bytes:
        """Of everything but sizes and times."""
        digest = hashlib.blake2b(digest_size=16)
        columns = (self.kind, self.subject, self.space)
        tables = (table.columns().values() for table in (self.blocks, self.scopes, self.roles))
        for column in (*columns, *(column for table in tables for column in table)):
            digest.update(column.tobytes())
            digest.update(b"|")
        return digest.digest()

    def with_sizes(self, sizes: Array) -> LedgerWindow:
        return self._alike(size=sizes)

    def between(self, other: LedgerWindow, share: float) -> LedgerWindow:
        """With times so much of the way to those of another window like it."""
        after_ns = (self.after_ns + share * (other.after_ns - self.after_ns)).astype(np.int64)
        return self._alike(after_ns=after_ns, stretch=self.stretch.between(other.stretch, share))

    def _alike(self, **sizes_or_times: Any) -> LedgerWindow:
        """With others of these. What does not depend on them is looked up once for all windows that are made from one."""
        made = replace(self, **sizes_or_times)
        vars(made).update({name: getattr(self, name) for name in ("where_given", "_frees_by_space", "_roles_by_block")})
        return made

    def frees(self, space: SubjectSpace) -> dict[int, int]:
        """By block of a space: the event that frees it."""
        return self._frees_by_space[space]

    @cached_property
    def _frees_by_space(self) -> dict[SubjectSpace, dict[int, int]]:
        found: dict[SubjectSpace, dict[int, int]] = {space: {} for space in SubjectSpace}
        where = np.flatnonzero(self.kind == EventKind.FREE)
        for space, subject, event in zip(self.space[where].tolist(), self.subject[where].tolist(), where.tolist(), strict=True):
            found[SubjectSpace(space)][subject] = event
        return found

    def lasting(self) -> dict[int, int]:
        """The size at which each of the lasting blocks that it resizes ends."""
        where = np.flatnonzero((self.kind == EventKind.RESIZE) & (self.space == SubjectSpace.LASTING))
        return dict(zip(self.subject[where].tolist(), self.size[where].tolist(), strict=True))

    def size_of(self, block: int) -> int:
        """The bytes that a block of the window began with."""
        born = np.flatnonzero((self.kind == EventKind.ALLOC) & (self.space == SubjectSpace.BLOCK) & (self.subject == block))
        return int(self.size[born[0]])

    def roles_of(self, block: int) -> Sequence[Category]:
        """What was learned of a block."""
        return self._roles_by_block.get(block, ())

    @cached_property
    def _roles_by_block(self) -> dict[int, list[Category]]:
        found: dict[int, list[Category]] = {}
        for block, role in zip(self.roles.block.tolist(), self.roles.role.tolist(), strict=True):
            found.setdefault(block, []).append(Category(role))
        return found

    def survivors(self) -> set[int]:
        """The blocks that came in it and are there at its end."""
        born = self.subject[(self.kind == EventKind.ALLOC) & (self.space == SubjectSpace.BLOCK)].tolist()
        return set(born) - set(self.frees(SubjectSpace.BLOCK))


@dataclass(frozen=True)
class Written:
    """Where a window was written."""

    first_block: int
    first_scope: int
    outer_scope: int

    def scope_of(self, window: LedgerWindow, block: int) -> int:
        scope = int(window.blocks.scope[block])
        return scope + self.first_scope if scope >= 0 else self.outer_scope


_NO_ROLES = Roles.from_rows([])


def _without_exits(events: Events, first_scope: int) -> Events:
    """Scopes of what ran before may end when a window has begun."""
    first = 0
    while first < len(events) and events.kind[first] == EventKind.EXIT and events.subject[first] < first_scope:
        first += 1
    return rows(events, slice(first, None)) if first else events


def _left_open(kind: Array, subject: Array) -> list[int]:
    """The scopes that were entered and not left, the innermost first."""
    entered, left = subject[kind == EventKind.ENTER].tolist(), set(subject[kind == EventKind.EXIT].tolist())
    return [scope for scope in reversed(entered) if scope not in left]


def _counted_from(numbers: Array, first: int, outer: int) -> Array:
    """-1 for what is around the window."""
    if ((numbers < first) & (numbers != outer)).any():
        raise NotRepeatableError(RunReason.EVENTS)
    counted: Array = np.where(numbers >= first, numbers - first, -1)
    return counted


def _placed(numbers: Array, first: int, outer: int) -> Array:
    placed: Array = np.where(numbers >= 0, numbers + first, outer)
    return placed
