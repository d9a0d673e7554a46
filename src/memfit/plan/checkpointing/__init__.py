"""Checkpointing to a budget: the fastest way to compute again, keep and offload such that a run completes.

::

    build or a script: runs.py
       └────> units.py: the units of the model when it first runs (roots.py), one forward of each written down (capture.py)
                 │ RecordedUnit  recorded.py
                 v
              levels.py: what can be done with a unit, bytes against seconds
                 │
                 v            ┌─────────── what it really needs ───────────┐
              search.py ──> solver.py: HiGHS, counts of equal units ──> trials.py: applied and predicted, exactly
                 │            └─ placements.py: which of equal units gets which level      uncertain.py: what it may need beyond
                 │
                 └──> Plan, or infeasible.py: the least that would fit, and why          api.py: plan_checkpointing
"""

from memfit.plan.checkpointing.api import plan_checkpointing

__all__ = ["plan_checkpointing"]
