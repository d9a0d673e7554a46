"""Memory in use each time something ran: at its beginning, at its end, and at its peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import Breakdown, breakdowns_at, trace_total
from memfit.ledger import Ledger, Phase
from memfit.ledger.schema import Array

Snapshot = dict[str, Breakdown]
"""Memory in use by device name."""


@dataclass(frozen=True, kw_only=True)
class ScopeSnapshots:
    """One execution of something. A module has one for each execution in each phase."""

    scope: int
    module: int
    """The module; -1 for a phase as a whole."""
    phase: Phase
    enter: Snapshot
    peak: Snapshot
    """Each device at its own peak."""
    exit: Snapshot | None
    """``None`` if the ledger ends before the scope."""


def take_snapshots(ledger: Ledger, scopes: Array | None = None) -> list[ScopeSnapshots]:
    """The snapshots of the given scopes, by default of all, in order of entry."""
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
