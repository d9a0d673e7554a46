"""How much a run may need beyond its prediction, where libraries choose how much memory they take.

::

    requests ──> the same with workspaces of cuDNN a little smaller or larger ──> the most that any of them needs

Which kernel cuDNN takes for a convolution or a recurrent layer is its own choice, and with it how much memory the kernel works in.
Rules are near for three workspaces in four. A workspace that is off by a few megabytes moves what is allocated after it, so that
the least memory under which the run completes is off by up to a tenth, either way. Where there is no such workspace, nothing is
uncertain.
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


def most_needed(ledger: Ledger, requests: Requests, settings: AllocatorSettings) -> int:
    """The largest of the smallest fits of all variants; 0 where no workspace is uncertain."""
    return max((smallest_fit(variant, settings).capacity for variant in _variants(ledger, requests)), default=0)


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
