"""PyTorch's trackers, estimators and planner, by their own names: replace the import and nothing else.

::

    torch.distributed._tools  ->  memfit.compat

    mem_tracker.py         MemTracker: memfit.track, told by trackers/
    fsdp2_mem_tracker.py   FSDPMemTracker: the same with FSDP's words
    mod_tracker.py         ModTracker: which modules run, and nothing about memory
    memory_tracker.py      MemoryTracker: what a device's allocator says after each operator; its mode, for other trackers
    common_utils.py        get_untyped_storages: which storages hold a tensor's bytes
    fake_collectives.py    groups, sizes and handles of collective operators
    runtime_estimator.py   RuntimeEstimator: milliseconds of modules, from memfit.timing
    sac_estimator.py       SACEstimator: what running operators again costs and frees
    ilp_utils.py           all of it put together: modules, and the highest moments of a step
    sac_ilp.py             sac_milp: which modules discard how much, by scipy's HiGHS
    trackers/              what the trackers are made of
    estimators/            what the estimators and the solver are made of

Files have the names of PyTorch's. No accounting happens here: every figure is a question to the ledger, or to the clock.
"""

from memfit.compat import fake_collectives, ilp_utils, sac_ilp
from memfit.compat.common_utils import get_untyped_storages
from memfit.compat.fsdp2_mem_tracker import FSDPMemTracker
from memfit.compat.mem_tracker import MemTracker
from memfit.compat.memory_tracker import MemoryProfileDispatchMode, MemoryTracker
from memfit.compat.mod_tracker import ModTracker
from memfit.compat.runtime_estimator import RuntimeEstimator
from memfit.compat.sac_estimator import MSPS, SACEstimator, SACGreedyOrderMeta, SACStats, SACTradeOffStats

__all__ = [
    "MSPS",
    "FSDPMemTracker",
    "MemTracker",
    "MemoryProfileDispatchMode",
    "MemoryTracker",
    "ModTracker",
    "RuntimeEstimator",
    "SACEstimator",
    "SACGreedyOrderMeta",
    "SACStats",
    "SACTradeOffStats",
    "fake_collectives",
    "get_untyped_storages",
    "ilp_utils",
    "sac_ilp",
]
