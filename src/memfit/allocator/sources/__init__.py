"""Where requests come from.

::

    Ledger ──────────────────> ledgers.py ──────────────────────┐
    trace.npz ───> traces.py ──────────┐                        ├──> Requests
    snapshot ────> torch_snapshots.py ─┴─> Entries, entries.py ─┘

    files.py        tells them apart by what they hold
    unpickling.py   reads a pickle that may come from a stranger

Files come from strangers: nothing in them is executed, and what contradicts itself is refused.
"""

from memfit.allocator.sources.files import load_requests
from memfit.allocator.sources.ledgers import requests_from_ledger

__all__ = ["load_requests", "requests_from_ledger"]
