"""Why a run ran out of memory, and what would have made it fit.

::

    oom.memfit ───────> from_ledger.py ──┐             ┌─> live_blocks.py  what was live: by category, module, place in the code
    run.memfit + GPU ─> from_ledger.py ──┼──> Scene ───┼─> unusable.py     what was cached, and why it could not serve
    snapshot.pickle ──> from_snapshot.py ┘             └─> remedies.py     what would have served it, each tried by replay
                                                                │
                             variants.py, checkpointing.py ─────┘          the same run with one thing changed

    scene.py         what the allocator was asked for up to the failure, and what it could give
    explanation.py   all of it together: ``explain(path)``

Nothing in here is a rule of thumb: a remedy is a changed list of requests, or changed settings, served by the simulated allocator
in the memory that there was. Nothing in here imports torch.
"""

from memfit.explain.explanation import Explanation, explain
from memfit.explain.live_blocks import HeldBlock, Holding
from memfit.explain.remedies import Remedy
from memfit.explain.unusable import Reason, Unusable

__all__ = ["Explanation", "HeldBlock", "Holding", "Reason", "Remedy", "Unusable", "explain"]
