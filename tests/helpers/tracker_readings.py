"""What a tracker says, PyTorch's or ours, in plain words and numbers."""

from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker as TorchFSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker as TorchMemTracker
from torch.distributed._tools.mod_tracker import ModTracker as TorchModTracker

from memfit.compat import FSDPMemTracker, MemTracker, ModTracker

__all__ = [
    "FSDPMemTracker",
    "MemTracker",
    "ModTracker",
    "TorchFSDPMemTracker",
    "TorchMemTracker",
    "TorchModTracker",
    "current",
    "in_words",
    "nonzero",
    "peak",
    "states",
]


def in_words(snapshot):
    """Device -> category -> bytes."""
    return {str(device): {getattr(key, "value", key): size for key, size in sizes.items()} for device, sizes in snapshot.items()}


def current(tracker, device="cpu"):
    return nonzero(tracker.get_tracker_snapshot("current"), device)


def peak(tracker, device="cpu"):
    return nonzero(tracker.get_tracker_snapshot("peak"), device)


def nonzero(snapshot, device="cpu"):
    """The categories that hold something on a device."""
    return {key: size for key, size in in_words(snapshot).get(device, {}).items() if size}


def states(tracker):
    """Module's name -> state -> its snapshots."""
    return {
        stats.mod_fqn: {state.value: [in_words(snapshot) for snapshot in taken] for state, taken in stats.snapshots.items()}
        for stats in tracker.memory_tracking.values()
    }
