"""Many ways to train one model, predicted and put side by side.

::

    compare(model="llama3-8b", strategy=[...], checkpointing=[...], gpu="H100-80GB")       api.py
        │
        grid.py ──> the cells: what goes into each, and what varies if nothing is said
        │
        cache.py ── known already? ──────────────────────────────────────────┐
        │ no                                   unless a file has changed     │
        │                                                                    │
        memfit.workers ──> a process per cell ──> memfit.predict, judged     │
        │                                                                    │
        v                                                                    v
    Comparison ── cells, best, recommended, to_json, to_csv <────────────── Cell
     result.py            └─ recommendation.py: which to run, and why

Only the processes of the cells import torch: a comparison that is all in the cache takes no longer than reading it.
"""

from memfit.compare.api import compare
from memfit.compare.result import Comparison

__all__ = ["Comparison", "compare"]
