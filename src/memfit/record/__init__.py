"""A run becomes events.

::

    memfit.track(model, optimizer, batch)     tracker.py
        │
        RecordingSession ── attach, record, catch up, close; memfit.predict has one too           session.py
        ├─ history/, the other witness: CUDA's allocator keeps the history, witnesses.py says which of both
        │
        ├─ Recorder, a dispatch mode: one look at every operator's outputs                        recorder.py
        │     ├─ operators.py      what each operator's outputs need, decided once
        │     ├─ blocks.py         blocks for what is new
        │     ├─ storages.py       which storages are known, and when each one dies
        │     ├─ position.py       where the run is: modules, backward, recomputation, optimizers
        │     │     └─ scopes.py, module_calls.py
        │     ├─ roles.py          what blocks turn out to be: parameters, gradients, ...
        │     └─ module_names.py   fully qualified names of modules
        └─ run_hooks.py, which tells every Listener of module calls, storage resizes, FSDP, DTensor

Recording is small and thinking is later: an operator costs one lookup per output and one row per new block. Nothing here computes
a sum.
"""

from memfit.record.history.alarms import StepFigures
from memfit.record.history.retention import Retention
from memfit.record.run_hooks import in_checkpoint
from memfit.record.tracker import Tracker, track

__all__ = ["Retention", "StepFigures", "Tracker", "in_checkpoint", "track"]
