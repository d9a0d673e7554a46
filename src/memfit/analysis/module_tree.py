"""The modules of a run as a tree, with the memory of each by family.

::

    cuda:0                      everything on the device
    ├── (Llama)                 a module with all below it
    │   ├── embed
    │   └── layers
    │       └── layers.*        optionally, modules that differ only in their numbers are one
    └── outside all modules

A family's figures are of the moment at which that family took most on the device, so that they add up: what a module has is what
its parts have and what is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from memfit.analysis.modules import ModuleStats, starred
from memfit.analysis.owners import find_owners
from memfit.analysis.timeline import MemoryTimeline, events_on, trace_total
from memfit.ledger import Category, Ledger
from memfit.ledger.schema import Array

OUTSIDE = "outside all modules"


class Family(Enum):
    """A coarse kind of memory, for tables in which all categories would be too wide."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    THE_REST = "the rest"
    """Temporaries, buffers, inputs, workspaces and buffers of collectives."""


_MEMBERS = {
    Family.PARAMETERS: (Category.PARAMETER, Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER),
    Family.GRADIENTS: (Category.GRADIENT, Category.SHARDED_GRADIENT, Category.UNSHARDED_GRADIENT),
    Family.OPTIMIZER_STATE: (Category.OPTIMIZER_STATE,),
    Family.ACTIVATIONS: (Category.ACTIVATION,),
}


def family_of(category: Category) -> Family:
    """The family of a category."""
    return next((family for family, members in _MEMBERS.items() if category in members), Family.THE_REST)


@dataclass(frozen=True, kw_only=True)
class ModuleNode:
    """A module, or several merged ones, with all modules below."""

    parent: int
    """The number of the parent; -1 for the root, which is the device."""
    path: str
    kind: str
    """The class; empty if there is none or several."""
    num_modules: int
    calls: int
    bytes_at_peak: int
    at_peak: dict[Family, int]
    """``bytes_at_peak`` by category."""
    highest: dict[Family, int]
    """Bytes by family, each at the family's own peak on the device."""
    peak_forward_bytes: int
    """Peak of the whole device while its forward ran."""
    peak_backward_bytes: int


def grow_tree(ledger: Ledger, device: int, modules: tuple[ModuleStats, ...], *, merged: bool) -> list[ModuleNode]:
    """The tree of a device, parents before their parts; ``merged`` makes one node of modules that differ only in their numbers."""
    node_of, parents = _nodes(ledger, modules, merged=merged)
    members: list[list[ModuleStats]] = [[] for _ in parents]
    for module, node in zip(modules, node_of[:-1].tolist(), strict=True):
        members[node].append(module)
    at_peak, highest = (_sum_up(table, parents) for table in _family_tables(ledger, device, node_of, len(parents)))
    nodes = [
        ModuleNode(
            parent=parent,
            path=_path(group, ledger.devices[device].name, node, merged=merged),
            kind=kinds.pop() if len(kinds := {module.kind for module in group}) == 1 else "",
            num_modules=len(group),
            calls=sum(module.calls for module in group),
            bytes_at_peak=int(at_peak[node].sum()),
            at_peak=dict(zip(Family, at_peak[node].tolist(), strict=True)),
            highest=dict(zip(Family, highest[node].tolist(), strict=True)),
            peak_forward_bytes=max((module.peak_forward_bytes for module in group), default=0),
            peak_backward_bytes=max((module.peak_backward_bytes for module in group), default=0),
        )
        for node, (parent, group) in enumerate(zip(parents, members, strict=True))
    ]
    return nodes if at_peak[-1].any() or highest[-1].any() else nodes[:-1]


def _path(group: list[ModuleStats], device: str, node: int, *, merged: bool) -> str:
    if not group:
        return OUTSIDE if node else device
    return starred(group[0].path) if merged and len(group) > 1 else group[0].path


def _nodes(ledger: Ledger, modules: tuple[ModuleStats, ...], *, merged: bool) -> tuple[Array, list[int]]:
    """The node of each module, with a last one for what no module owns; and the parent of each node."""
    node_of, parents, known = np.empty(len(modules) + 1, dtype=np.int64), [-1], dict[tuple[int, str], int]()
    for number, (module, above) in enumerate(zip(modules, ledger.modules.parent.tolist(), strict=True)):
        parent = int(node_of[above]) if above >= 0 else 0
        key = (parent, starred(module.path) if merged else f"{number}")
        if key not in known:
            known[key] = len(parents)
            parents.append(parent)
        node_of[number] = known[key]
    node_of[-1] = len(parents)
    return node_of, [*parents, 0]


def _family_tables(ledger: Ledger, device: int, node_of: Array, num_nodes: int) -> tuple[Array, Array]:
    """Per node and family, without submodules: bytes at the device's peak, and at the family's own."""
    families = np.array([list(Family).index(family_of(category)) for category in Category])[ledger.categories]
    owners = node_of[find_owners(ledger)]
    here = ledger.blocks.device == device
    at_peak, highest = (np.zeros((num_nodes, len(Family)), dtype=np.int64) for _ in range(2))
    held = ledger.block_bytes_at(_highest(trace_total(ledger, device)))
    np.add.at(at_peak, (owners[here], families[here]), held[here])
    changes = events_on(ledger, device)
    for family in range(len(Family)):
        own = changes[families[ledger.events.subject[changes]] == family]
        held = ledger.block_bytes_at(_highest(MemoryTimeline.from_deltas(own, ledger.deltas[own])))
        chosen = here & (families == family)
        np.add.at(highest[:, family], owners[chosen], held[chosen])
    return at_peak, highest


def _highest(timeline: MemoryTimeline) -> int:
    return int(timeline.events[np.argmax(timeline.totals)])


def _sum_up(table: Array, parents: list[int]) -> Array:
    """Adds to each node the sums of the nodes below it. Parents come first."""
    for node in range(len(parents) - 1, 0, -1):
        table[parents[node]] += table[node]
    return table
