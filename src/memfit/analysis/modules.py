"""The memory of each module on a device; repeated modules form one group: ``layers.*.attention.wq``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.owners import find_owners
from memfit.analysis.timeline import MemoryTimeline, trace_total
from memfit.ledger import Category, Ledger, Phase
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True)
class ModuleStats:
    """A module's memory on one device."""

    module: int
    path: str
    kind: str
    """Its class."""
    calls: int
    """Number of forward calls, without recomputation."""
    parameter_bytes: int
    """Bytes of its own and its submodules' parameters, or of their shards. Shared ones count once."""
    buffer_bytes: int
    input_bytes: int
    """Bytes of the tensors passed to forward, the maximum over all calls."""
    output_bytes: int
    peak_forward_bytes: int
    """Peak of the whole device while its forward ran."""
    peak_backward_bytes: int
    """Peak of the whole device while its backward ran, recomputation included."""
    own_bytes_at_peak: int
    """Bytes it owned at the device's peak, without submodules."""
    tree_bytes_at_peak: int
    """Bytes it owned at the device's peak, with submodules."""


def gather_module_stats(ledger: Ledger, device: int) -> list[ModuleStats]:
    """One entry for each module of the ledger, parents first."""
    timeline = trace_total(ledger, device)
    forward = _scopes_of(ledger, Phase.FORWARD)
    backward = _scopes_of(ledger, Phase.BACKWARD, Phase.RECOMPUTE)
    own = bytes_by_module(ledger, int(timeline.events[np.argmax(timeline.totals)]), device)[:-1]
    columns = {
        "calls": np.bincount(ledger.scopes.module[forward], minlength=len(ledger.modules)),
        "parameter_bytes": _held_in_tree(ledger, device, Category.PARAMETER, Category.SHARDED_PARAMETER),
        "buffer_bytes": _held_in_tree(ledger, device, Category.BUFFER),
        "input_bytes": _largest_by_module(ledger, forward, _sizes_at(ledger, ledger.scope_enter[forward])),
        "output_bytes": _largest_by_module(ledger, forward, _sizes_at(ledger, ledger.scope_exit[forward])),
        "peak_forward_bytes": _largest_by_module(ledger, forward, _peaks_in(ledger, timeline, forward)),
        "peak_backward_bytes": _largest_by_module(ledger, backward, _peaks_in(ledger, timeline, backward)),
        "own_bytes_at_peak": own,
        "tree_bytes_at_peak": _sum_over_trees(ledger, own),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        ModuleStats(module=module, path=ledger.module_path(module), kind=kind, **dict(zip(columns, row, strict=True)))
        for module, (kind, row) in enumerate(zip(_kinds(ledger), rows, strict=True))
    ]


def bytes_by_module(ledger: Ledger, event: int, device: int) -> Array:
    """Per module: the bytes it owned right after an event, without submodules. The last entry is what no module owned."""
    held = np.where(ledger.blocks.device == device, ledger.block_bytes_at(event), 0)
    totals = np.zeros(len(ledger.modules) + 1, dtype=np.int64)
    np.add.at(totals, find_owners(ledger), held)
    return totals


def _kinds(ledger: Ledger) -> list[str]:
    return [ledger.strings[kind] for kind in ledger.modules.kind.tolist()]


def _scopes_of(ledger: Ledger, *phases: Phase) -> Array:
    return np.flatnonzero(np.isin(ledger.scopes.phase, phases) & (ledger.scopes.module >= 0))


def _sizes_at(ledger: Ledger, events: Array) -> Array:
    return np.append(ledger.events.size, 0)[events]


def _peaks_in(ledger: Ledger, timeline: MemoryTimeline, scopes: Array) -> Array:
    last = np.minimum(ledger.scope_exit[scopes], len(ledger.events) - 1)
    return timeline.at(timeline.highest_between(ledger.scope_enter[scopes], last))


def _largest_by_module(ledger: Ledger, scopes: Array, sizes: Array) -> Array:
    largest = np.zeros(len(ledger.modules), dtype=np.int64)
    np.maximum.at(largest, ledger.scopes.module[scopes], sizes)
    return largest


def _held_in_tree(ledger: Ledger, device: int, *roles: Category) -> Array:
    """Per module: the bytes of the blocks with these roles in it and below it. Each block counts once.

    Counted are the blocks that live when the module last finishes its forward: a parameter that was replaced, by a cast or by its
    shard, counts as what replaced it.
    """
    chosen = np.isin(ledger.roles.role, roles) & (ledger.blocks.device[ledger.roles.block] == device)
    block, module = ledger.roles.block[chosen], ledger.roles.module[chosen].astype(np.int64)
    moment, num_blocks = _last_used(ledger), len(ledger.blocks)
    pairs = [np.empty(0, dtype=np.int64)]
    while (module >= 0).any():
        block, module = block[module >= 0], module[module >= 0]
        lives = (ledger.birth[block] <= moment[module]) & (moment[module] < ledger.death[block])
        pairs.append((module * num_blocks + block)[lives])
        module = ledger.modules.parent[module].astype(np.int64)
    module, block = np.divmod(np.unique(np.concatenate(pairs)), max(num_blocks, 1))
    totals = np.zeros(len(ledger.modules), dtype=np.int64)
    np.add.at(totals, module, ledger.block_peak_bytes[block])
    return totals


def _last_used(ledger: Ledger) -> Array:
    """Per module: the event at which its forward last ended; by default its parent's, or else the last event."""
    end = len(ledger.events) - 1
    forward = _scopes_of(ledger, Phase.FORWARD)
    moment = np.full(len(ledger.modules), -1, dtype=np.int64)
    np.maximum.at(moment, ledger.scopes.module[forward], np.minimum(ledger.scope_exit[forward], end))
    for module in np.flatnonzero(moment < 0):
        parent = ledger.modules.parent[module]
        moment[module] = moment[parent] if parent >= 0 else end
    return moment


def _sum_over_trees(ledger: Ledger, own: Array) -> Array:
    """Adds to each module the sums of its submodules."""
    totals = own.tolist()
    for module, parent in reversed(list(enumerate(ledger.modules.parent.tolist()))):
        if parent >= 0:
            totals[parent] += totals[module]
    return np.array(totals, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class ModuleGroup:
    """Modules whose paths differ only in the numbers in them."""

    path: str
    """The path with a star for each number; a single module's own path."""
    num_modules: int
    bytes_at_peak: int
    """Bytes they owned at the device's peak, without submodules."""


def group_modules(modules: list[ModuleStats]) -> list[ModuleGroup]:
    """The groups that owned memory at the peak, largest first."""
    members: dict[str, list[ModuleStats]] = {}
    for module in modules:
        if module.own_bytes_at_peak:
            members.setdefault(starred(module.path), []).append(module)
    groups = [
        ModuleGroup(
            path=path if len(group) > 1 else group[0].path,
            num_modules=len(group),
            bytes_at_peak=sum(module.own_bytes_at_peak for module in group),
        )
        for path, group in members.items()
    ]
    return sorted(groups, key=lambda group: -group.bytes_at_peak)


def starred(path: str) -> str:
    """The path with a star for each number in it."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def starred_once(path: str) -> str:
    """The path with a star for the first number in it."""
    parts = path.split(".")
    first = next((number for number, part in enumerate(parts) if part.isdecimal()), len(parts))
    return ".".join([*parts[:first], *(["*"] if first < len(parts) else []), *parts[first + 1 :]])
