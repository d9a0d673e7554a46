"""What no configuration can beat, from sizes alone: seconds of a step, and bytes of a GPU.

::

    shapes.py       what one GPU computes of a layer┐
    job/states.py   which GPUs share weights ───────┼──> least_time.py    seconds that a step takes at least
    layer_time.py   kernels at the clock's prices   │
    sharing.py      what is gathered and reduced    │
    turns.py        what FSDP2 never does at once ──┘──> least_memory.py  bytes that the allocator must have at least

A search leaves out by these, so that none may be above what is predicted: ``tests/plan/search/test_bounds.py`` compares.
"""

from memfit.plan.search.bounds.least_memory import least_bytes
from memfit.plan.search.bounds.least_time import least_seconds

__all__ = ["least_bytes", "least_seconds"]
