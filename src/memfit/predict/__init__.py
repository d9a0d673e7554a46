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

from memfit.predict.api import predict
from memfit.predict.ranks import JobPrediction, RankPrediction
from memfit.predict.result import Prediction, StepPrediction
from memfit.predict.session import PhantomSession

__all__ = ["JobPrediction", "PhantomSession", "Prediction", "RankPrediction", "StepPrediction", "predict"]

__not_compiled__ = True
