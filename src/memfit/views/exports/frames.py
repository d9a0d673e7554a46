"""What is known of a block, as the frames of a stack: tools that draw memory by call stack then draw it by module.

::

    aten.mm.default                          the operator
    layers.0.mlp.weight                      what it is called, if anything
    layers.0.mlp, layers.0, layers, (Model)  the module that owns it, and those around it
    backward, in step 1                      when it was born
    gradient                                 what it is
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memfit.analysis.owners import find_names, find_owners
from memfit.ledger import Category, Ledger, Phase
from memfit.ledger.columns import steps_at
from memfit.views.escaping import printable


@dataclass(frozen=True)
class BlockFacts:
    """The facts of a block, ready to be written; equal for blocks that differ in nothing but their sizes and lives."""

    category: str
    op: str
    name: str
    """Empty where it has none."""
    modules: tuple[str, ...]
    """The module that owns it, then those around it; empty where none does."""
    phase: str
    """Empty outside all phases."""
    step: int
    """-1 before the first."""


class BlockIndex:
    """Looks blocks up by number."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getitem__(self, block: int) -> BlockFacts:
        category, op, name, owner, phase, step = self._rows[block]
        return BlockFacts(
            category=Category(category).label,
            op=printable(self._ledger.strings[op]),
            name=printable(name),
            modules=self._chains[owner],
            phase=Phase(phase).label if phase >= 0 else "",
            step=step,
        )

    @cached_property
    def _rows(self) -> list[tuple[int, int, str, int, int, int]]:
        ledger = self._ledger
        steps = steps_at(ledger, ledger.birth)
        columns = (ledger.categories, ledger.blocks.op, find_owners(ledger), ledger.block_phase, steps)
        categories, ops, owners, phases, steps = (column.tolist() for column in columns)
        names = find_names(ledger, np.arange(len(ledger.blocks)))
        return list(zip(categories, ops, names, owners, phases, steps, strict=True))

    @cached_property
    def _chains(self) -> list[tuple[str, ...]]:
        """Per module: its path and those above it; one more entry for none."""
        chains: list[tuple[str, ...]] = []
        for module, parent in enumerate(self._ledger.modules.parent.tolist()):
            above = chains[parent] if parent >= 0 else ()
            chains.append((printable(self._ledger.module_path(module)), *above))
        return [*chains, ()]
