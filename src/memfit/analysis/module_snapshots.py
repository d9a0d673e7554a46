"""What was in use each time something ran: when it began, when it ended, and at the highest moment between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import Breakdown, breakdowns_at, trace_total
from memfit.ledger import Ledger, Phase
from memfit.ledger.schema import Array

Snapshot = dict[str, Breakdown]
"""What was in use on each device, by the device's name."""


@dataclass(frozen=True, kw_only=True)
class ScopeSnapshots:
    """One time that something ran. A module has one for each time it ran in each phase."""

    scope: int
    module: int
    """-1 where a phase ran as a whole."""
    phase: Phase
    enter: Snapshot
    peak: Snapshot
    """Each device at its own highest moment."""
    exit: Snapshot | None
    """``None`` where the ledger ends before the scope does."""


def take_snapshots(ledger: Ledger, scopes: Array | None = None) -> list[ScopeSnapshots]:
    """The snapshots of the scopes asked for, or of all, in the order in which they were entered."""
    scopes = np.arange(len(ledger.scopes)) if scopes is None else scopes
    first, last = ledger.scope_enter[scopes], np.minimum(ledger.scope_exit[scopes], len(ledger.events) - 1)
    devices = range(len(ledger.devices))
    enters = _snapshots(ledger, [first for _ in devices], len(scopes))
    exits = _snapshots(ledger, [last for _ in devices], len(scopes))
    peaks = _snapshots(ledger, [trace_total(ledger, device).highest_between(first, last) for device in devices], len(scopes))
    return [
        ScopeSnapshots(
            scope=scope,
            module=int(ledger.scopes.module[scope]),
            phase=Phase(ledger.scopes.phase[scope]),
            enter=enters[i],
            peak=peaks[i],
            exit=exits[i] if ledger.scope_exit[scope] < len(ledger.events) else None,
        )
        for i, scope in enumerate(scopes.tolist())
    ]


def _snapshots(ledger: Ledger, events_by_device: list[Array], count: int) -> list[Snapshot]:
    breakdowns = [breakdowns_at(ledger, events, device) for device, events in enumerate(events_by_device)]
    names = [device.name for device in ledger.devices]
    return [{name: rows[i] for name, rows in zip(names, breakdowns, strict=True)} for i in range(count)]
