"""Many ways to train one model, predicted and put side by side.

::

    compare(model="llama3-8b", strategy=[...], checkpointing=[...], gpu="H100-80GB")       comparing.py
        │
        grid.py ──> the cells: what goes into each          defaults.py  what varies if nothing is said
        │
        cache.py ── known already? ──────────────────────────────────────────┐
        │ no                                                                 │
        lanes.py ──> worker.py ──> a process a cell ──> predict, judge       │
        │                          working.py                                │
        v                                                                    v
    Comparison ── cells, best, recommended, to_json, to_csv <────────────── Cell
     comparison.py        └─ advice.py, sheet.py ──> views                   cell.py

Only the processes of the cells import torch: a comparison that is all in the cache takes no longer than reading it.
"""

from memfit.compare.api import compare
from memfit.compare.cell import Cell, Figures
from memfit.compare.result import Comparison

__all__ = ["Cell", "Comparison", "Figures", "compare"]
