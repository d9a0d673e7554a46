"""A run becomes events.

::

    memfit.track(model, optimizer, batch)     tracker.py
        │
        RecordingSession ── attach, record, catch up, close; memfit.predict has one too           session.py
        │     │      its thread, which is not there while the program forks                          helper_thread.py
        │     ├─ sources/operators/   a dispatch mode looks at every operator's outputs
        │     └─ sources/allocator/   CUDA's allocator keeps the history; tracker.py chooses one of both
        │
        ├─ position.py       where the run is: modules, backward, recomputation, optimizers
        │     └─ module_calls.py
        ├─ roles.py          what blocks turn out to be: parameters, gradients, ...; tensors.py says which tensors hold bytes
        ├─ module_names.py   fully qualified names of modules
        └─ run_hooks.py      tells every Listener, listener.py, of optimizer steps, module calls, resized storages, engines, DTensor

    out_of_memory.py         what an out-of-memory error says
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Retention": "sources.allocator.retention",
    "StepFigures": "sources.allocator.alarms",
    "Tracker": "tracker",
    "in_checkpoint": "run_hooks",
    "track": "tracker",
}
"""Public names, each with its module, which is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


__not_compiled__ = True
