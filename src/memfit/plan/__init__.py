"""How to train so that it fits, and what that costs in time.

::

    plan_file.py   Plan: what was asked, what to do, what it will take ──> JSON, and back
    policy.py        its CheckpointingPolicy: what each unit keeps, offloads and computes again, operator by operator

A plan is plain data: reading one imports no torch, and applying one imports no solver.
"""

from memfit.plan.plan_file import Figures, Plan
from memfit.plan.policy import Action, CheckpointingPolicy, OperatorChoice, UnitPolicy

__all__ = ["Action", "CheckpointingPolicy", "Figures", "OperatorChoice", "Plan", "UnitPolicy"]
