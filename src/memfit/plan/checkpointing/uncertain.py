"""How much a run may need beyond its prediction, and why.

::

    requests ──> the last step again and again, until the allocator has settled  with_more_steps
             ──> the run once more in a process that has trained before and emptied its cache ─┐
             ──> the same with workspaces of cuDNN a little smaller or larger ─────────────────┴─> the most that any of them needs

A process that has trained before keeps the workspaces of its products, wherever they lie in a segment, and what is allocated later
finds other gaps: a small BERT that needs 2.74 GiB in a new process needs 2.97 GiB then, and an H200 ran out.

Which kernel cuDNN takes for a convolution or a recurrent layer is its own choice, and with it how much memory the kernel works in.
Rules are near for three workspaces in four. A workspace that is off by a few megabytes moves what is allocated after it, so that
the least memory under which the run completes is off by up to a tenth, either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from memfit.allocator import AllocatorSettings, RequestKind, Requests, smallest_fit
from memfit.ledger import Category, Ledger
from memfit.ledger.schema import Array

CHOSEN_BY_CUDNN: Final = ("convolution", "_cudnn_rnn")
"""Of operators whose workspaces are cuDNN's choice: parts of their names."""
FACTORS: Final = (0.8, 0.9, 1.0, 1.1, 1.2)
"""What an estimated workspace may really be; one draw for all calls that are estimated alike. Of 21 real runs with such workspaces,
the prediction alone is 9.7 % below the least memory in the worst, and the most of these variants 0.5 %."""
NUM_VARIANTS: Final = 16
MORE_STEPS: Final = 4
"""A Swin needs 3 % more in its fifth step than in its third; no other model that was tried needs more after its third."""


def most_needed(ledger: Ledger, requests: Requests, settings: AllocatorSettings) -> int:
    """The largest of the smallest fits of all variants."""
    variants = [in_a_used_process(ledger, requests), *_variants(ledger, requests)]
    return max(smallest_fit(variant, settings).capacity for variant in variants)


def with_more_steps(ledger: Ledger, requests: Requests) -> Requests:
    """The requests with those of the last step repeated; as they are where it does not do what the step before it did."""
    starts = np.searchsorted(requests.event, ledger.step_starts)
    if len(starts) < 2:
        return requests
    before, last = np.arange(starts[-2], starts[-1]), np.arange(starts[-1], len(requests))
    alike = (requests.kind, requests.size, requests.stream, requests.pool)
    if len(before) != len(last) or any(not np.array_equal(column[before], column[last]) for column in alike):
        return requests
    kind, block = requests.kind[last], requests.block[last]
    made, used = np.flatnonzero(kind == RequestKind.ALLOC), np.flatnonzero((kind != RequestKind.ALLOC) & (block >= 0))
    place, place_before = np.full((2, requests.num_blocks), -1)
    place[block[made]] = place_before[requests.block[before[made]]] = np.arange(len(made))
    own, earlier = place[block[used]], place_before[block[used]]
    if ((own < 0) & (earlier < 0)).any():  # something that was older is freed, which can be done only once
        return requests
    blocks, blocks_before, num_blocks = [requests.block], block[made], requests.num_blocks
    for _ in range(MORE_STEPS):
        new, again = num_blocks + np.arange(len(made)), block.copy()
        again[made], again[used] = new, np.where(own >= 0, new[own], blocks_before[earlier])
        blocks.append(again)
        blocks_before, num_blocks = new, num_blocks + len(made)
    rows = np.concatenate([np.arange(len(requests)), *(last,) * MORE_STEPS])
    return requests.take(rows, block=np.concatenate(blocks), num_blocks=num_blocks)


def in_a_used_process(ledger: Ledger, requests: Requests) -> Requests:
    """The run; its end, after which all but the workspaces of products is given back; and the run again, with these."""
    made = np.flatnonzero(requests.kind == RequestKind.ALLOC)
    is_workspace, is_left = np.zeros((2, requests.num_blocks), dtype=bool)
    is_workspace[requests.block[made]] = ledger.categories[ledger.events.subject[requests.event[made]]] == Category.WORKSPACE
    is_left[requests.block[made]] = True
    is_left[requests.block[np.isin(requests.kind, (RequestKind.FREE, RequestKind.FREE_REQUESTED))]] = False
    left = np.flatnonzero(is_left & ~is_workspace)
    again = np.flatnonzero((requests.block < 0) | ~(is_left & is_workspace)[requests.block])
    end = np.zeros(len(left) + 1, dtype=np.int64)
    ended = np.array([*(RequestKind.FREE,) * len(left), RequestKind.EMPTY_CACHE])
    block, kind, size = requests.block, requests.kind, requests.size
    return requests.take(
        np.concatenate([np.arange(len(requests)), end, again]),
        kind=np.concatenate([kind, ended, kind[again]]).astype(kind.dtype),
        block=np.concatenate([block, left, [-1], np.where(block[again] < 0, -1, block[again] + requests.num_blocks)]),
        size=np.concatenate([size, end, size[again]]),
        num_blocks=2 * requests.num_blocks,
    )


def _variants(ledger: Ledger, requests: Requests) -> Iterator[Requests]:
    rows = _uncertain_rows(ledger, requests)
    if not len(rows):
        return
    estimated, alike = np.unique(requests.size[rows], return_inverse=True)
    draws = np.random.default_rng(0)
    for _ in range(NUM_VARIANTS):
        factors = draws.choice(FACTORS, size=len(estimated))
        size = requests.size.copy()
        size[rows] = np.maximum(1, (estimated * factors)[alike])
        yield replace(requests, size=size)


def _uncertain_rows(ledger: Ledger, requests: Requests) -> Array:
    """Requests for workspaces that cuDNN chooses."""
    is_chosen = np.array([any(part in name for part in CHOSEN_BY_CUDNN) for name in ledger.strings], dtype=bool)
    is_uncertain = (ledger.categories == Category.WORKSPACE) & is_chosen[ledger.blocks.op]
    allocations = np.flatnonzero(requests.kind == RequestKind.ALLOC)
    rows: Array = allocations[is_uncertain[ledger.events.subject[requests.event[allocations]]]]
    return rows
