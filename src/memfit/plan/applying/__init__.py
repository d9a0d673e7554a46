"""A policy, applied to a model that is trained: eager, sharded or compiled, on a real GPU or on a predicted one.

::

    apply(model, plan)  api.py ──> model.py: each unit, by its name (named_units.py), gets another forward  checkpointed_forward.py
                                       │ eager: torch.utils.checkpoint, with two dispatch modes  kept_outputs.py
                                       │          that keep outputs, or bring them to the host and back  host_copies.py
                                       │          and norms that count what they see only once  running_statistics.py
                                       │          and caches of keys and values, filled only once  caches.py
                                       └ compiled: torch's own selective contexts, which the compiler knows
    MEMFIT_PLAN=plan.json  programs.py ──> the same, when a program that knows nothing of it first calls its model
                                       └─> the allocator's settings, and losses some rows at a time  chunked_loss.py

No solver is imported here: a plan is applied where only torch is.
"""

from memfit.plan.applying.api import apply
from memfit.plan.applying.model import undo

__all__ = ["apply", "undo"]
