"""Which operators made what is in use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.timeline import block_bytes_at
from memfit.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class OpShare:
    """What one operator made of the memory in use at a moment."""

    op: str
    num_blocks: int
    size_bytes: int


def bytes_by_op(ledger: Ledger, event: int, device: int) -> list[OpShare]:
    """The operators whose blocks were in use on a device right after an event, those with most first."""
    held = block_bytes_at(ledger, event)
    live = np.flatnonzero((held > 0) & (ledger.blocks.device == device))
    ops, which = np.unique(ledger.blocks.op[live], return_inverse=True)
    sizes = np.zeros(len(ops), dtype=np.int64)
    np.add.at(sizes, which, held[live])
    columns = (ops, np.bincount(which, minlength=len(ops)), sizes)
    shares = [
        OpShare(op=ledger.strings[op], num_blocks=count, size_bytes=size)
        for op, count, size in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return sorted(shares, key=lambda share: -share.size_bytes)
