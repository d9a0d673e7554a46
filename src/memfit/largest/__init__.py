"""The largest batch or the longest sequence that fits.

::

    max_batch(model="llama3-8b", gpu="H100")     api.py: models, configs and functions, in worker processes, cached
    memfit max-batch train.py --batch-size {}    scripts.py: a program, one number after another
        │
        search.py ── bounds, then guesses from what is known, until N fits and the next one does not
        v
    LargestFit   result.py
"""

from memfit.largest.api import max_batch, max_seq
from memfit.largest.result import LargestFit

__all__ = ["LargestFit", "max_batch", "max_seq"]
