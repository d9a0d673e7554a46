"""PyTorch's trackers, by their own names: replace the import and nothing else.

::

    torch.distributed._tools.mem_tracker.MemTracker              -> memfit.compat.MemTracker
    torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker    -> memfit.compat.FSDPMemTracker
    torch.distributed._tools.mod_tracker.ModTracker              -> memfit.compat.ModTracker

    torch_categories.py   categories and states, spelled as PyTorch spells them
    tracker_snapshots.py  a ledger in the shape that PyTorch's methods return
    display.py            what the display methods print
    mem_tracker.py        MemTracker: memfit.track and the three above
    fsdp_tracker.py       FSDPMemTracker: the same with FSDP's words
    mod_tracker.py        ModTracker: which modules run, and nothing about memory
    fake_values.py        what only data can tell, assumed on fake tensors

No accounting happens here: every figure is a question to the ledger.
"""

from memfit.compat.fsdp_tracker import FSDPMemTracker
from memfit.compat.mem_tracker import MemTracker
from memfit.compat.mod_tracker import ModTracker

__all__ = ["FSDPMemTracker", "MemTracker", "ModTracker"]
