"""A ledger in the shape that PyTorch's methods return: device -> category -> bytes, and lists of those by module and state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from memfit.analysis import Breakdown, ModuleStats, gather_module_stats
from memfit.analysis.module_snapshots import Snapshot as LedgerSnapshot
from memfit.compat.trackers.torch_categories import TOTAL, RefType, SnapshotState
from memfit.ledger import Category, Ledger
from memfit.record.module_names import told_apart

Snapshot = dict[torch.device, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class StateMoment:
    """A state that a module was in."""

    event: int
    """When it was entered; a peak is listed with the beginning of what it is the peak of."""
    module: int
    state: SnapshotState
    snapshot: LedgerSnapshot


@dataclass
class ModuleMemStats:
    """A module's statistics, with the attributes that PyTorch's have."""

    mod_fqn: str
    parameter_mem: int = 0
    buffer_mem: int = 0
    input_mem: int = 0
    output_mem: int = 0
    local_peak: dict[torch.device, int] = field(default_factory=dict)
    snapshots: dict[SnapshotState, list[Snapshot]] = field(default_factory=dict)

    def add(self, state: SnapshotState, snapshot: Snapshot) -> None:
        self.snapshots.setdefault(state, []).append(snapshot)
        if state.is_peak:
            self.local_peak = {device: sizes[TOTAL] for device, sizes in snapshot.items()}


class Translation:
    """From a ledger's categories to a tracker's."""

    def __init__(self, ref_types: dict[Category, RefType]) -> None:
        self._ref_types = ref_types
        self._kind = type(next(iter(ref_types.values())))

    def breakdown(self, breakdown: Breakdown) -> dict[str, int]:
        """Every category of the tracker, those that hold nothing too, and their total."""
        sizes: dict[str, int] = dict.fromkeys(self._kind, 0)
        for category, size in breakdown.items():
            sizes[self._ref_types[category]] += size
        sizes[TOTAL] = sum(breakdown.values())
        return sizes

    def snapshot(self, snapshot: LedgerSnapshot) -> Snapshot:
        """Devices that hold nothing are left out."""
        return {torch.device(name): self.breakdown(breakdown) for name, breakdown in snapshot.items() if breakdown}


def event_at(ledger: Ledger, time_ns: int) -> int:
    """The last event at or before a time, -1 if there is none."""
    return int(np.searchsorted(ledger.events.time_ns, time_ns, side="right")) - 1


def class_name(ledger: Ledger, module: int) -> str:
    """A module's path with its root's class in front, as PyTorch's ModTracker gives it: ``Llama.layers.0``."""
    root = module
    while ledger.modules.parent[root] >= 0:
        root = ledger.modules.parent[root]
    path: str = ledger.strings[ledger.modules.path[module]]
    first_kind = "" if ledger.strings[ledger.modules.path[0]] else ledger.strings[ledger.modules.kind[0]]
    if ledger.strings[ledger.modules.path[root]]:
        return told_apart(path, first_kind)
    kind = ledger.strings[ledger.modules.kind[root]]
    return f"{kind}.{path}" if path else kind


def stats_over_devices(ledger: Ledger) -> Iterable[tuple[int, ModuleMemStats]]:
    """What modules hold, over all devices; no snapshots yet."""
    by_device = [gather_module_stats(ledger, device) for device in range(len(ledger.devices))]
    for rows in zip(*by_device, strict=True):
        first: ModuleStats = rows[0]
        yield (
            first.module,
            ModuleMemStats(
                mod_fqn=class_name(ledger, first.module),
                parameter_mem=sum(row.parameter_bytes for row in rows),
                buffer_mem=sum(row.buffer_bytes for row in rows),
                input_mem=first.input_bytes,
                output_mem=first.output_bytes,
            ),
        )
