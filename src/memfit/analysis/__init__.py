"""Analyses of a ledger, each a pure function of it.

::

    Ledger ──> timeline ──> peaks, modules, snapshots, lifetimes ──> Report ──> views

    timeline.py    memory in use over events, in total and by category; the most in each of many ranges
    course.py      how high each training step, evaluation and save rose, and with which batch
    growth.py      what grows from step to step, and which blocks it is made of
    peaks.py       when most was in use, over the run and in each step, what it was, and which operators made it
    owners.py      the module that owns a block
    modules.py     what each module costs; the layers of a model as one line
    module_snapshots.py  what was in use each time something ran
    lifetimes.py   blocks: what made them, when they came and went
    phases.py      forward, backward, the optimizer's step: what each cost
    lanes.py       what each stream did when
    moments.py     the moments that a drawing needs, and what was in use at each
    module_tree.py the modules as a tree, by family: the few kinds of memory that people think in
    status.py      where a run stands that is still being recorded (memfit top)
    report.py      all that the views show
    diff/          two runs, compared

Only ``largest_live`` loops over events in Python: a million of them take seconds. Imports no torch.
"""

from memfit.analysis.course import Course, Leg, find_course
from memfit.analysis.diff.runs import Diff, diff_ledgers
from memfit.analysis.growth import Growth, find_growth
from memfit.analysis.lanes import Lane, LaneWindow, find_window, trace_lanes
from memfit.analysis.lifetimes import BlockLife, largest_blocks_at, trace_lifetimes
from memfit.analysis.module_snapshots import ScopeSnapshots, Snapshot, take_snapshots
from memfit.analysis.module_tree import Family, ModuleNode, family_of, grow_tree
from memfit.analysis.modules import ModuleGroup, ModuleStats, bytes_by_module, gather_module_stats
from memfit.analysis.moments import Moments, choose_moments, largest_live
from memfit.analysis.peaks import (
    OpShare,
    Peak,
    Share,
    StepPeak,
    breakdown_at,
    bytes_by_op,
    current_breakdown,
    find_peak,
    find_step_peaks,
)
from memfit.analysis.phases import PhaseSpan, trace_phases
from memfit.analysis.report import DeviceReport, Report, build_report
from memfit.analysis.timeline import Breakdown, MemoryTimeline, trace_categories, trace_total
from memfit.ledger.columns import INIT, running_at

__all__ = [
    "INIT",
    "BlockLife",
    "Breakdown",
    "Course",
    "DeviceReport",
    "Diff",
    "Family",
    "Growth",
    "Lane",
    "LaneWindow",
    "Leg",
    "MemoryTimeline",
    "ModuleGroup",
    "ModuleNode",
    "ModuleStats",
    "Moments",
    "OpShare",
    "Peak",
    "PhaseSpan",
    "Report",
    "ScopeSnapshots",
    "Share",
    "Snapshot",
    "StepPeak",
    "breakdown_at",
    "build_report",
    "bytes_by_module",
    "bytes_by_op",
    "choose_moments",
    "current_breakdown",
    "diff_ledgers",
    "family_of",
    "find_course",
    "find_growth",
    "find_peak",
    "find_step_peaks",
    "find_window",
    "gather_module_stats",
    "grow_tree",
    "largest_blocks_at",
    "largest_live",
    "running_at",
    "take_snapshots",
    "trace_categories",
    "trace_lanes",
    "trace_lifetimes",
    "trace_phases",
    "trace_total",
]
