"""A run that never happened becomes a ledger.

::

    predict(build, gpu, ...)  api.py      memfit run torchrun ... train.py  scripts/
        │                                     │   blame.py          whose error it is
        ├─────────────────────────────────────┘
        └── ranks="all": ranks.py, one of each kind of rank, side by side ──> JobPrediction
        PhantomSession  session.py ── a PhantomWorld, recorded
        │                    ├─ workspaces.py      what kernels and libraries take, beside what the recorder sees
        │                    ├─ clock.py           how long it takes: every operator advances the phantom's clock
        │                    ├─ work.py            what each stream did in the last step, for the ledger
        │                    ├─ host.py            what tensors take on the host, pinned memory among it
        │                    ├─ limit.py           where memory runs out, the run is told
        │                    └─ meter.py           torch.cuda.memory_allocated() and the like, while it runs
        v
    Prediction  result.py ── the ledger, served by the allocator: peaks, fit, verdict, breakdown, time, assumptions

    run/           the whole run: calls that repeat are written down, not run
    cells.py       what the process of one cell of a comparison does
    step_time.py   the step time of a job whose ranks were predicted one by one
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "JobPrediction": "ranks",
    "PhantomSession": "session",
    "Prediction": "result",
    "RankPrediction": "ranks",
    "StepPrediction": "result",
    "predict": "api",
}
"""Public names, each with its module, which is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


__not_compiled__ = True
