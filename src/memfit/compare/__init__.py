"""Many ways to train one model, predicted and put side by side.

::

    compare(model="llama3-8b", strategy=[...], checkpointing=[...], gpu="H100-80GB")       api.py
        │
        grid.py ──> the cells: what goes into each          defaults.py  what varies if nothing is said
        │                                                   user_functions.py  train.py:build, and what a cell calls it with
        cache.py ── known already? ──────────────────────────────────────────┐
        │ no                                       source_files.py: unless   │
        │                                          a file has changed        │
        processes.py ──> worker.py ──> a process per cell ──> predict, judge │
        │                              cell_prediction.py                    │
        v                                                                    v
    Comparison ── cells, best, recommended, to_json, to_csv <────────────── Cell
     result.py            └─ recommendation.py: which to run, and why        cell.py

Only the processes of the cells import torch: a comparison that is all in the cache takes no longer than reading it.
"""

from memfit.compare.api import compare
from memfit.compare.cell import Cell, Figures
from memfit.compare.result import Comparison

__all__ = ["Cell", "Comparison", "Figures", "compare"]
