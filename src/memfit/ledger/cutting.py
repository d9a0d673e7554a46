"""A ledger up to some moment, as if it had been cut short there."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from memfit.ledger.ledger import Ledger
from memfit.ledger.schema import Array, EventKind, Table, Work

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
