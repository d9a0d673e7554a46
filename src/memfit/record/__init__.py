"""A run becomes events.

::

    memfit.track(model, optimizer, batch)
        │
        Tracker ── enters ──> Recorder, a dispatch mode: one look at every operator's outputs
        │                        │
        │                        ├─ storages.py   which storages are known, and when each one dies
        │                        ├─ calls.py      which module calls are open, and whose an autograd node is
        │                        ├─ scopes.py     what runs: modules, backward, recomputation, optimizers
        │                        ├─ naming.py     fully qualified names of modules
        │                        └─ roles.py      what blocks turn out to be: parameters, gradients, ...
        └─ attaches ──> patches.py  module calls, storage resizes, FSDP, DTensor: undone when the last listener leaves

Recording is small and thinking is later: an operator costs one lookup per output and one row per new block. Nothing here computes
a sum. What torch does not promise is reached through ``torch_private.py`` and ``fsdp_private.py`` alone.
"""

from memfit.record.run_hooks import in_checkpoint
from memfit.record.tracker import Tracker, track

__all__ = ["Tracker", "in_checkpoint", "track"]
