"""Memory that grows from step to step, and the blocks behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.analysis.owners import find_owners
from memfit.analysis.timeline import trace_total
from memfit.ledger import Ledger

FEWEST_STEPS: Final = 10
"""Fewest steps for a finding: the first ones create gradients and optimizer state."""
NUM_STRETCHES: Final = 4
"""Number of equal parts of the later half of the run; memory must grow in each of them."""
STEADY: Final = 0.5
"""Each part must grow by at least this share of the mean."""
LEAST_BYTES: Final = 1024
"""Least growth per step that is reported: a counter or a list of losses is not a leak."""
NUM_PLACES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Memory that every step leaves behind, averaged over the later half of the run."""

    bytes_a_step: float
    at_end: int
    """Bytes in use at the end of the last step."""
    places: tuple[tuple[str, str, int], ...]
    """What stays, largest first: operator, module and bytes, from that half."""
    num_steps: int

    def full_at_step(self, peak: int, capacity: int) -> int | None:
        """The step in which memory runs out, given the peak so far and the allocator's limit; ``None`` if it already has."""
        return None if peak > capacity else self.num_steps + int((capacity - peak) / self.bytes_a_step)

    def to_json(self) -> dict[str, Any]:
        places = [{"operator": op, "module": module, "bytes": size} for op, module, size in self.places]
        return {"bytes_a_step": self.bytes_a_step, "num_steps": self.num_steps, "places": places}


def find_growth(ledger: Ledger, device: int) -> Growth | None:
    """The growth on a device; ``None`` if there is none, or too few steps were seen."""
    starts = ledger.step_starts
    if len(starts) < FEWEST_STEPS:
        return None
    levels = trace_total(ledger, device).at(starts - 1)
    half = len(starts) // 2
    marks = np.linspace(half, len(starts) - 1, NUM_STRETCHES + 1).round().astype(int)
    grown = np.diff(levels[marks])
    num_steps = int(marks[-1] - marks[0])
    if grown.min() < STEADY * grown.mean() or grown.sum() < LEAST_BYTES * num_steps:
        return None
    first, last = int(starts[marks[0]]), int(starts[marks[-1]])
    return Growth(
        bytes_a_step=float(grown.sum() / num_steps),
        at_end=int(levels[-1]),
        places=_places(ledger, device, first, last),
        num_steps=len(starts),
    )


def _places(ledger: Ledger, device: int, first: int, last: int) -> tuple[tuple[str, str, int], ...]:
    """Operator, module and bytes of the blocks allocated between two events that outlive the second."""
    stay = np.flatnonzero(
        (ledger.blocks.device == device) & (ledger.birth >= first) & (ledger.birth < last) & (ledger.death >= last)
    )
    if not len(stay):
        return ()
    pairs, where = np.unique(np.stack((ledger.blocks.op[stay], find_owners(ledger)[stay]), axis=1), axis=0, return_inverse=True)
    sizes = np.bincount(where.ravel(), weights=ledger.block_peak_bytes[stay]).astype(np.int64)
    order = np.argsort(-sizes, kind="stable")[:NUM_PLACES]
    return tuple((ledger.strings[pairs[i][0]], ledger.module_path(int(pairs[i][1])), int(sizes[i])) for i in order.tolist())
