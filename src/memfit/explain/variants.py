"""The same run with one thing changed.

What depends on the micro-batch is known from what blocks turned out to be: inputs, activations, the temporaries of forward and
backward, and the workspaces that one operator takes there scale with it; parameters, gradients, optimizer state, workspaces that
are kept and the buffers of collectives do not. A copy of a parameter in a narrower type, as autocast makes it, is an activation by
its life, but does not scale either.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from memfit.allocator import RequestKind, Requests
from memfit.analysis.owners import find_owners
from memfit.ledger import Category, Ledger, Phase
from memfit.ledger.schema import Array

SCALING: Final = (Category.INPUT, Category.ACTIVATION, Category.FORWARD_TEMPORARY, Category.BACKWARD_TEMPORARY)
_PARAMETERS: Final = (Category.PARAMETER, Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER)
_MAKERS: Final = ("aten._to_copy", "aten.mm")


@dataclass(frozen=True, eq=False)
class Variant:
    """Requests, and what each of their blocks is."""

    requests: Requests
    ledger: Ledger
    source: Array
    """Per block of the requests: the ledger's block, -1 where it has none."""

    @classmethod
    def of(cls, requests: Requests) -> Variant | None:
        """The run as it was; ``None`` if nothing is known of its blocks."""
        ledger = requests.ledger
        if ledger is None:
            return None
        allocates = np.flatnonzero(requests.kind == RequestKind.ALLOC)
        source = np.full(requests.num_blocks, -1, dtype=np.int64)
        event = requests.event[allocates]
        source[requests.block[allocates]] = np.where(event >= 0, ledger.events.subject[event], -1)
        return cls(requests, ledger, source)

    @cached_property
    def categories(self) -> Array:
        """Per block: its ``Category``, -1 where it is not known. One more entry serves requests about no block."""
        known: Array = np.append(self.ledger.categories.astype(np.int64), -1)
        return np.asarray(known[np.append(self.source, -1)])

    def scaled(self, share: float) -> Variant:
        """With a smaller micro-batch: blocks that depend on it shrink."""
        scales = np.append(_scales(self.ledger), False)[np.append(self.source, -1)]
        chosen = (self.requests.kind == RequestKind.ALLOC) & scales[self.requests.block]
        size = np.where(chosen, np.maximum(1, np.round(self.requests.size * share)), self.requests.size).astype(np.int64)
        return replace(self, requests=replace(self.requests, size=size))

    def without(self, category: Category) -> Variant:
        """As if blocks of this category were on another device."""
        kept = self.categories[self.requests.block] != category
        return replace(self, requests=self.requests.take(np.flatnonzero(kept)))


def _scales(ledger: Ledger) -> Array:
    """Per block of the ledger: does its size depend on the micro-batch?"""
    in_passing = (ledger.categories == Category.WORKSPACE) & (ledger.death < len(ledger.events))
    in_passing &= np.isin(ledger.block_phase, (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD))
    scales: Array = np.isin(ledger.categories, SCALING) | in_passing
    return scales & ~_shaped_like_parameters(ledger)


def _shaped_like_parameters(ledger: Ledger) -> Array:
    """Per block: is it a parameter of its own module in a narrower type, or that parameter's gradient?

    Casts make the one, matrix products the other; of the blocks of that size in one call, as many as there are such parameters.
    """
    owner, size = find_owners(ledger), ledger.block_peak_bytes
    parameters = np.isin(ledger.categories, _PARAMETERS)
    num_of_size: Counter[tuple[int, int]] = Counter()
    for module, parameter_bytes in zip(owner[parameters].tolist(), size[parameters].tolist(), strict=True):
        num_of_size.update(((module, parameter_bytes // 4), (module, parameter_bytes // 2)))
    makers = np.array([text.startswith(_MAKERS) for text in ledger.strings] or [False])
    candidates = np.flatnonzero(makers[ledger.blocks.op] & ~parameters)
    found, seen = np.zeros(len(ledger.blocks), dtype=bool), Counter[tuple[int, int, int]]()
    for block in candidates.tolist():
        shape, key = (int(owner[block]), int(size[block])), (int(ledger.blocks.scope[block]), int(ledger.blocks.op[block]))
        seen[*key, shape[1]] += 1
        found[block] = seen[*key, shape[1]] <= num_of_size[shape]
    return found
