"""A run that never happened becomes a ledger.

::

    predict(build, gpu, ...)      predict_script(train.py, ...)      scripts.py
        │                             │
        PhantomSession ── a PhantomWorld with a recorder in it      predicting.py
        │                    ├─ recording.py   workspaces, beside what the recorder sees
        │                    └─ metering.py    torch.cuda.memory_allocated() and its kin, in the midst of it
        v
    Prediction ── the ledger, served by the allocator: peaks, fit, verdict, breakdown, assumptions
"""

from memfit.predict.result import Prediction, StepPrediction
from memfit.predict.session import PhantomSession, predict

__all__ = ["PhantomSession", "Prediction", "StepPrediction", "predict"]
