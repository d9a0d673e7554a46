"""The module that owns a block.

A parameter belongs to the module that declares it, and so do its gradient and its optimizer state, wherever they were born. A block
that no module declares is owned by the module it was born in.
"""

from __future__ import annotations

import numpy as np

from memfit.ledger import Ledger
from memfit.ledger.schema import Array


def find_owners(ledger: Ledger) -> Array:
    """Per block: the module that owns it, the first one if it is shared; -1 if none does."""
    return _first_said(ledger, ledger.roles.module, ledger.block_module)


def find_names(ledger: Ledger, blocks: Array) -> list[str]:
    """The names of ``blocks``, ``layers.0.weight``; empty without a name."""
    nameless = np.full(len(ledger.blocks), -1, dtype=np.int64)
    names = _first_said(ledger, ledger.roles.name, nameless)[blocks].tolist()
    return [ledger.strings[name] if name >= 0 else "" for name in names]


def _first_said(ledger: Ledger, column: Array, otherwise: Array) -> Array:
    """Per block: the first known value of ``column`` among its roles, or ``otherwise``."""
    said = np.flatnonzero(column >= 0)[::-1]
    found = otherwise.copy()
    found[ledger.roles.block[said]] = column[said]
    return found
