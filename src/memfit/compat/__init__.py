"""PyTorch's trackers, by their own names: replace the import and nothing else.

::

    torch.distributed._tools.mem_tracker.MemTracker              -> memfit.compat.MemTracker
    torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker    -> memfit.compat.FSDPMemTracker
    torch.distributed._tools.mod_tracker.ModTracker              -> memfit.compat.ModTracker
    torch.distributed._tools.memory_tracker.MemoryTracker        -> memfit.compat.MemoryTracker
    torch.distributed._tools.runtime_estimator.RuntimeEstimator  -> memfit.compat.RuntimeEstimator
    torch.distributed._tools.common_utils.get_untyped_storages   -> memfit.compat.get_untyped_storages
    torch.distributed._tools.fake_collectives                    -> memfit.compat.fake_collectives

    torch_categories.py   categories and states, spelled as PyTorch spells them
    tracker_snapshots.py  a ledger in the shape that PyTorch's methods return
    display.py            what the display methods print
    module_entries.py     memory_tracking: one dictionary that callers may change
    mem_tracker.py        MemTracker: memfit.track and the four above
    fsdp_tracker.py       FSDPMemTracker: the same with FSDP's words
    mod_tracker.py        ModTracker: which modules run, and nothing about memory
    fake_values.py        what only data can tell, assumed on fake tensors
    memory_tracker.py     MemoryTracker: what a device's allocator says after each operator
    untyped_storages.py   which storages hold a tensor's bytes
    fake_collectives.py   groups, sizes and handles of collective operators
    estimators/           RuntimeEstimator: milliseconds of modules, from memfit.timing

No accounting happens here: every figure is a question to the ledger, or to the clock.
"""

from memfit.compat import fake_collectives
from memfit.compat.estimators import RuntimeEstimator
from memfit.compat.fsdp_tracker import FSDPMemTracker
from memfit.compat.mem_tracker import MemTracker
from memfit.compat.memory_tracker import MemoryTracker
from memfit.compat.mod_tracker import ModTracker
from memfit.compat.untyped_storages import get_untyped_storages

__all__ = [
    "FSDPMemTracker",
    "MemTracker",
    "MemoryTracker",
    "ModTracker",
    "RuntimeEstimator",
    "fake_collectives",
    "get_untyped_storages",
]
