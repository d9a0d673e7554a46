"""A run becomes events.

::

    memfit.track(model, optimizer, batch)     tracker.py
        │
        RecordingSession ── attach, record, catch up, close; memfit.predict has one too           session.py
        │     ├─ sources/operators/   a dispatch mode looks at every operator's outputs
        │     └─ sources/allocator/   CUDA's allocator keeps the history; witnesses.py chooses one of both
        │
        ├─ position.py       where the run is: modules, backward, recomputation, optimizers
        │     └─ module_calls.py
        ├─ roles.py          what blocks turn out to be: parameters, gradients, ...; tensors.py says which tensors hold bytes
        ├─ module_names.py   fully qualified names of modules
        └─ run_hooks.py      tells every Listener, listener.py, of optimizer steps, module calls, resized storages, engines, DTensor

    out_of_memory.py         what an out-of-memory error says
"""

from memfit.record.run_hooks import in_checkpoint
from memfit.record.sources.allocator.alarms import StepFigures
from memfit.record.sources.allocator.retention import Retention
from memfit.record.tracker import Tracker, track

__all__ = ["Retention", "StepFigures", "Tracker", "in_checkpoint", "track"]

__not_compiled__ = True
