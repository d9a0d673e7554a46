"""Ledgers made from others: cut short at some moment, or with the last step repeated.

::

    init   step 0   step 1                     step 2 = step 1: the same events, about blocks and scopes of its own
    ──────┬────────┬────────┐┄┄┄┄┄┄┄┄┐
          └ makes  └ begins and ends with the same blocks in use: what it made it freed, or it took the place of a block
            state    of the same size that the step found and freed

Only the code that made the step knows that it does the same every time. A ledger shows whether it leaves everything as it found it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from memfit.ledger.ledger import Ledger
from memfit.ledger.schema import Array, Blocks, EventKind, Events, Roles, Scopes, Table, Work

ABOUT_BLOCKS = (EventKind.ALLOC, EventKind.FREE, EventKind.RESIZE, EventKind.STREAM)
ABOUT_SCOPES = (EventKind.ENTER, EventKind.EXIT)

_T = TypeVar("_T", bound=Table)


def cut(ledger: Ledger, num_events: int) -> Ledger:
    """The first ``num_events`` events, the blocks and scopes that had come by then, and what was learned of them."""
    events = rows(ledger.events, np.arange(min(num_events, len(ledger.events))))
    blocks, scopes = np.flatnonzero(ledger.birth < num_events), np.flatnonzero(ledger.scope_enter < num_events)
    block_number, scope_number = _numbers(blocks, len(ledger.blocks)), _numbers(scopes, len(ledger.scopes))
    subject = events.subject.copy()
    for kinds, number in ((ABOUT_BLOCKS, block_number), (ABOUT_SCOPES, scope_number)):
        chosen = np.isin(events.kind, kinds)
        subject[chosen] = number[subject[chosen]]
    kept_blocks, kept_scopes = rows(ledger.blocks, blocks), rows(ledger.scopes, scopes)
    roles = rows(ledger.roles, np.flatnonzero(np.isin(ledger.roles.block, blocks)))
    slack = rows(ledger.slack, np.flatnonzero(np.isin(ledger.slack.block, blocks)))
    returns = rows(ledger.returns, np.flatnonzero(np.isin(ledger.returns.block, blocks)))
    last_ns = int(events.time_ns.max(initial=0))
    return replace(
        ledger,
        events=replace(events, subject=subject),
        blocks=replace(kept_blocks, scope=scope_number[kept_blocks.scope]),
        scopes=replace(kept_scopes, parent=scope_number[kept_scopes.parent]),
        roles=replace(roles, block=block_number[roles.block]),
        slack=replace(slack, block=block_number[slack.block]),
        returns=replace(returns, block=block_number[returns.block]),
        levels=rows(ledger.levels, np.flatnonzero(ledger.levels.time_ns <= last_ns)),
        # It is about all of the last step, which is another one now, or not whole.
        work=ledger.work if num_events >= len(ledger.events) else Work.from_rows([]),
        activity=rows(ledger.activity, np.flatnonzero(ledger.activity.event <= num_events)),
    )


def cut_at_failure(ledger: Ledger) -> Ledger:
    """Without what happened on the way out of an out-of-memory error: frees, and scopes that were left."""
    if not ledger.info.failure:
        return ledger
    return cut(ledger, int(np.searchsorted(ledger.events.time_ns, ledger.info.failure.time_ns, side="right")))


def rows(table: _T, chosen: Array | slice) -> _T:
    columns: dict[str, Any] = {field.name: getattr(table, field.name)[chosen] for field in fields(table)}
    return replace(table, **columns)


def _numbers(kept: Array, count: int) -> Array:
    """The new number of each of ``count`` rows of which some are kept; -1 stays -1."""
    number = np.full(count + 1, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    return number


def leaves_all_as_it_was(ledger: Ledger) -> bool:
    """Does the last step end with the blocks that it began with, or with equal ones in their place?"""
    if not len(ledger.step_starts) or len(ledger.returns) or len(ledger.slack) or len(ledger.levels):
        return False
    start, end = int(ledger.step_starts[-1]), len(ledger.events)
    is_of_step = ledger.scope_enter >= start
    if not np.where(is_of_step, ledger.scope_exit < end, ledger.scope_exit < start).all():
        return False
    before, now = _state(ledger, start), _state(ledger, end)
    kept = np.flatnonzero((ledger.birth < start) & (ledger.death == end))
    freed, left = _replaced(ledger, end)
    if not all(np.array_equal(then[kept], later[kept]) for then, later in zip(before, now, strict=True)):
        return False
    return all(np.array_equal(then[freed], later[left]) for then, later in zip(before, now, strict=True))


def repeat_last_step(ledger: Ledger, times: int, total_ns: int, *, sooner_ns: int = 0, num_after: int = 0) -> Ledger:
    """The ledger with its last step, which takes ``total_ns``, ``times`` more.

    All of a repetition is ``sooner_ns`` earlier after its beginning than it was in the step. The last ``num_after`` events come
    after the step: what is freed when the run is over.
    """
    start, end = int(ledger.step_starts[-1]), len(ledger.events) - num_after
    step, after = _Part.between(ledger, start, end), _Part.between(ledger, end, len(ledger.events))
    step.events.time_ns[1:] -= sooner_ns
    num_blocks, num_scopes = len(ledger.blocks) - len(after.blocks), len(ledger.scopes) - len(after.scopes)
    block, scope = np.append(np.arange(len(ledger.blocks)), -1), np.append(np.arange(len(ledger.scopes)), -1)
    freed, left = _replaced(ledger, end)
    parts = [_Part.between(ledger, 0, end)]
    later_ns = total_ns
    for number in range(1, times + 1):
        block[freed] = block[left]
        block[step.blocks] = num_blocks + (number - 1) * len(step.blocks) + np.arange(len(step.blocks))
        scope[step.scopes] = num_scopes + (number - 1) * len(step.scopes) + np.arange(len(step.scopes))
        parts.append(step.renumbered(block, scope, later_ns, number))
        later_ns += total_ns - sooner_ns
    block[after.blocks] += times * len(step.blocks)
    scope[after.scopes] += times * len(step.scopes)
    parts.append(after.renumbered(block, scope, times * (total_ns - sooner_ns)))
    return replace(
        ledger,
        events=Events.concatenate([part.events for part in parts]),
        blocks=Blocks.concatenate([part.block_rows for part in parts]),
        scopes=Scopes.concatenate([part.scope_rows for part in parts]),
        roles=Roles.concatenate([part.role_rows for part in parts]),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """Some events, with the blocks and scopes that came in them."""

    events: Events
    blocks: Array
    scopes: Array
    """Their numbers in the ledger."""
    block_rows: Blocks
    scope_rows: Scopes
    role_rows: Roles

    @classmethod
    def between(cls, ledger: Ledger, first: int, end: int) -> _Part:
        blocks, scopes = (np.flatnonzero((came >= first) & (came < end)) for came in (ledger.birth, ledger.scope_enter))
        return cls(
            rows(ledger.events, np.arange(first, end)),
            blocks,
            scopes,
            rows(ledger.blocks, blocks),
            rows(ledger.scopes, scopes),
            rows(ledger.roles, np.flatnonzero(np.isin(ledger.roles.block, blocks))),
        )

    def renumbered(self, block: Array, scope: Array, later_ns: int, steps_later: int = 0) -> _Part:
        """These events again, shifted in time, for the blocks and scopes with these numbers."""
        subject = self.events.subject.copy()
        for kinds, number in ((ABOUT_BLOCKS, block), (ABOUT_SCOPES, scope)):
            chosen = np.isin(self.events.kind, kinds)
            subject[chosen] = number[subject[chosen]]
        subject[self.events.kind == EventKind.STEP] += steps_later
        return replace(
            self,
            events=replace(self.events, subject=subject, time_ns=self.events.time_ns + later_ns),
            block_rows=replace(self.block_rows, scope=scope[self.block_rows.scope]),
            scope_rows=replace(self.scope_rows, parent=scope[self.scope_rows.parent]),
            role_rows=replace(self.role_rows, block=block[self.role_rows.block]),
        )


def _replaced(ledger: Ledger, end: int) -> tuple[Array, Array]:
    """Blocks that the last step, up to ``end``, found and freed, and those that it made and left, each in the order in which they
    came."""
    start = int(ledger.step_starts[-1])
    freed = np.flatnonzero((ledger.birth < start) & (ledger.death > start) & (ledger.death < end))
    left = np.flatnonzero((ledger.birth >= start) & (ledger.birth < end) & (ledger.death >= end))
    return freed[np.argsort(ledger.birth[freed])], left[np.argsort(ledger.birth[left])]


def _state(ledger: Ledger, num_events: int) -> tuple[Array, ...]:
    """Per block: its size and stream after ``num_events`` events, and what never changes: its device and operator."""
    kind, block, size = (column[:num_events] for column in (ledger.events.kind, ledger.events.subject, ledger.events.size))
    sizes, streams = np.zeros(len(ledger.blocks), dtype=np.int64), ledger.blocks.stream.copy()
    for kinds, of_blocks in (((EventKind.ALLOC, EventKind.RESIZE), sizes), ((EventKind.STREAM,), streams)):
        chosen = np.isin(kind, kinds)
        of_blocks[block[chosen]] = size[chosen]  # of several for one block, the last one stays
    return sizes, streams, ledger.blocks.device, ledger.blocks.op
