"""Questions to a ledger; every answer is a pure function of it.

::

    Ledger ──> timeline ──> peaks, modules, snapshots, lifetimes ──> Report ──> views

    ranges.py      the largest value in each of many ranges, for everything that asks "the most while ..."
    timeline.py    memory in use over events, in total and by category
    peaks.py       when most was in use, over the run and in each step, and what it was
    owners.py      whose a block is
    modules.py     what each module costs
    groups.py      the same, with the layers of a model as one line
    snapshots.py   what was in use each time something ran
    lifetimes.py   blocks: what made them, when they came and went
    report.py      all that the views show

Events are never walked one by one: a million of them take seconds. Nothing in here imports torch.
"""

from memfit.analysis.groups import ModuleGroup
from memfit.analysis.lifetimes import BlockLife, largest_blocks_at, trace_lifetimes
from memfit.analysis.modules import ModuleStats, bytes_by_module, gather_module_stats
from memfit.analysis.peaks import INIT, Peak, Share, StepPeak, breakdown_at, current_breakdown, find_peak, find_step_peaks
from memfit.analysis.report import DeviceReport, Report, build_report
from memfit.analysis.snapshots import ScopeSnapshots, Snapshot, take_snapshots
from memfit.analysis.timeline import Breakdown, Timeline, trace_categories, trace_total

__all__ = [
    "INIT",
    "BlockLife",
    "Breakdown",
    "DeviceReport",
    "ModuleGroup",
    "ModuleStats",
    "Peak",
    "Report",
    "ScopeSnapshots",
    "Share",
    "Snapshot",
    "StepPeak",
    "Timeline",
    "breakdown_at",
    "build_report",
    "bytes_by_module",
    "current_breakdown",
    "find_peak",
    "find_step_peaks",
    "gather_module_stats",
    "largest_blocks_at",
    "take_snapshots",
    "trace_categories",
    "trace_lifetimes",
    "trace_total",
]
