"""The fastest configuration that fits.

::

    plan(model="llama3-70b", gpu="H100-80GB", world_size=64)                                       api.py
        │
        space.py ──> every configuration that trains the same ──> candidate.py: what it cannot do better than
        │                                                              by bounds/, from sizes alone
        exploring.py ── best first; what cannot win is never predicted <── siblings.py: what one says of others
        │     │
        │     └─ jobs.py: what is predicted of each ──> memfit.workers: by whom
        v
    PlanSearch  result.py ── the best, the frontier of time against memory, what more memory would buy, what would fit
"""

from memfit.plan.search.api import plan
from memfit.plan.search.result import Gain, Infeasible, PlanSearch, Point

__all__ = ["Gain", "Infeasible", "PlanSearch", "Point", "plan"]
