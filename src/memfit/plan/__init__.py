"""How to train so that it fits, and what that costs in time.

::

    checkpointing/  a budget becomes a policy: what each unit keeps, offloads and computes again, operator by operator
                        │ policy.py
                        v
    plan_file.py    Plan: what was asked, what to do, what it will take ──> JSON, and back
                        │                                              └─> handwritten.py: the same in a few lines of torch
                    │                                                  emit/: or for torchtitan, accelerate, transformers
                        v
    applying/       a model that does it: memfit.apply(model, plan)
    search/         the fastest configuration that fits (memfit plan)

A plan is plain data: reading one imports no torch, and applying one imports no solver.
"""

from memfit.plan.plan_file import Plan, PlanCost, PlannedModel, ProgramMeans
from memfit.plan.policy import Action, CheckpointingPolicy, OperatorChoice, UnitPolicy

__all__ = ["Action", "CheckpointingPolicy", "OperatorChoice", "Plan", "PlanCost", "PlannedModel", "ProgramMeans", "UnitPolicy"]
