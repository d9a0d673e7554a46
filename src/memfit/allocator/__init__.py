"""CUDA's caching allocator, simulated: what a run reserves, and the least memory it completes in.

::

    Ledger, trace.npz, snapshot.pickle
        │ sources/
        v
    Requests ──> replay(settings, capacity) ──> Replay: reserved over time, statistics, segments, where it ran out
        │            └─ engine/: the allocator itself
        ├──────> smallest_fit ──────> SmallestFit: the least capacity that works, and how the run behaves there
        └──────> judge(gpu) ────────> Verdict: fits or not, by how much, what would help

    requests.py, replaying.py, fit.py, verdict.py   these four, in this order
    settings.py, alloc_conf.py   how an allocator is set up, for each release of torch      sizing.py   what sizes become
    changes.py, statistics.py, segments.py    what a Replay derives
    log.py                                    the log that torch would have written of it
    live.py                                   requests served one by one, while a run goes on

Nothing in here imports torch.
"""

from memfit.allocator.alloc_conf import parse_alloc_conf
from memfit.allocator.fit import SmallestFit, smallest_fit
from memfit.allocator.replaying import OutOfMemory, Replay, recorded_settings, replay
from memfit.allocator.requests import RequestKind, Requests
from memfit.allocator.segments import BlockState, SegmentState
from memfit.allocator.settings import AllocatorSettings
from memfit.allocator.sources import load_requests, requests_from_ledger
from memfit.allocator.verdict import SettingsNeed, Verdict, compare_settings, judge

__all__ = [
    "AllocatorSettings",
    "BlockState",
    "OutOfMemory",
    "Replay",
    "RequestKind",
    "Requests",
    "SegmentState",
    "SettingsNeed",
    "SmallestFit",
    "Verdict",
    "compare_settings",
    "judge",
    "load_requests",
    "parse_alloc_conf",
    "recorded_settings",
    "replay",
    "requests_from_ledger",
    "smallest_fit",
]
