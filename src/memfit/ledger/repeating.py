"""A run with its last step some more times, for steps that do the same every time.

::

    init   step 0   step 1                     step 2 = step 1: the same events, about blocks and scopes of its own
    ──────┬────────┬────────┐┄┄┄┄┄┄┄┄┐
          └ makes  └ begins and ends with the same blocks in use: what it made it freed, or it took the place of a block
            state    of the same size that the step found and freed

Only whoever made the step knows that it does the same every time. A ledger shows whether it leaves everything as it found it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memfit.ledger.cutting import ABOUT_BLOCKS, ABOUT_SCOPES, rows
from memfit.ledger.ledger import Ledger
from memfit.ledger.schema import Array, Blocks, EventKind, Events, Roles, Scopes


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
    freed, left = _replaced(ledger)
    if not all(np.array_equal(then[kept], later[kept]) for then, later in zip(before, now, strict=True)):
        return False
    return all(np.array_equal(then[freed], later[left]) for then, later in zip(before, now, strict=True))


def repeat_last_step(ledger: Ledger, times: int, total_ns: int, sooner_ns: int = 0) -> Ledger:
    """The ledger with its last step, which takes ``total_ns``, ``times`` more. All of a repetition is ``sooner_ns`` earlier after its
    beginning than it was in the step."""
    start = int(ledger.step_starts[-1])
    events = rows(ledger.events, np.arange(start, len(ledger.events)))
    events.time_ns[1:] -= sooner_ns
    new_blocks, new_scopes = np.flatnonzero(ledger.birth >= start), np.flatnonzero(ledger.scope_enter >= start)
    blocks, scopes = rows(ledger.blocks, new_blocks), rows(ledger.scopes, new_scopes)
    roles = rows(ledger.roles, np.flatnonzero(ledger.birth[ledger.roles.block] >= start))
    freed, left = _replaced(ledger)
    all_events, all_blocks, all_scopes, all_roles = [ledger.events], [ledger.blocks], [ledger.scopes], [ledger.roles]
    found = left
    for number in range(1, times + 1):
        block = _numbers(len(ledger.blocks), new_blocks, len(ledger.blocks) + (number - 1) * len(new_blocks))
        scope = _numbers(len(ledger.scopes), new_scopes, len(ledger.scopes) + (number - 1) * len(new_scopes))
        block[freed], found = found, block[left]
        all_events.append(_copied(events, block, scope, number, total_ns + (number - 1) * (total_ns - sooner_ns)))
        all_blocks.append(replace(blocks, scope=scope[blocks.scope]))
        all_scopes.append(replace(scopes, parent=scope[scopes.parent]))
        all_roles.append(replace(roles, block=block[roles.block]))
    return replace(
        ledger,
        events=Events.concatenate(all_events),
        blocks=Blocks.concatenate(all_blocks),
        scopes=Scopes.concatenate(all_scopes),
        roles=Roles.concatenate(all_roles),
    )


def _replaced(ledger: Ledger) -> tuple[Array, Array]:
    """Blocks that the last step found and freed, and those that it made and left, each in the order in which they came."""
    start, end = int(ledger.step_starts[-1]), len(ledger.events)
    is_old = ledger.birth < start
    freed = np.flatnonzero(is_old & (ledger.death > start) & (ledger.death < end))
    left = np.flatnonzero(~is_old & (ledger.death == end))
    return tuple(found[np.argsort(ledger.birth[found], kind="stable")] for found in (freed, left))


def _state(ledger: Ledger, num_events: int) -> tuple[Array, ...]:
    """Per block: its size and its stream after so many events, and what does not change: its device and what made it."""
    kind, block, size = (column[:num_events] for column in (ledger.events.kind, ledger.events.subject, ledger.events.size))
    sizes, streams = np.zeros(len(ledger.blocks), dtype=np.int64), ledger.blocks.stream.copy()
    for kinds, of_blocks in (((EventKind.ALLOC, EventKind.RESIZE), sizes), ((EventKind.STREAM,), streams)):
        chosen = np.isin(kind, kinds)
        of_blocks[block[chosen]] = size[chosen]  # of several for one block, the last one stays
    return sizes, streams, ledger.blocks.device, ledger.blocks.op


def _numbers(count: int, renamed: Array, first: int) -> Array:
    """The number of each row in a repetition: those that are new in it follow ``first``. -1 stays -1."""
    number = np.append(np.arange(count), -1)
    number[renamed] = first + np.arange(len(renamed))
    return number


def _copied(events: Events, block: Array, scope: Array, number: int, later_ns: int) -> Events:
    subject = events.subject.copy()
    for kinds, renumbered in ((ABOUT_BLOCKS, block), (ABOUT_SCOPES, scope)):
        chosen = np.isin(events.kind, kinds)
        subject[chosen] = renumbered[subject[chosen]]
    subject[0] += number  # the event that begins the step
    return replace(events, subject=subject, time_ns=events.time_ns + later_ns)
