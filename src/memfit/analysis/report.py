"""Everything that the views show of a ledger, computed once."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from memfit.analysis.course import Course, find_course
from memfit.analysis.lifetimes import BlockLife, largest_blocks_at
from memfit.analysis.modules import ModuleGroup, ModuleStats, gather_module_stats, group_modules
from memfit.analysis.peaks import Peak, Share, StepPeak, current_breakdown, find_peak, find_step_peaks, share_out
from memfit.analysis.timeline import Breakdown, trace_categories, trace_total
from memfit.ledger import Category, Ledger, RunInfo

NUM_BLOCKS = 20
NUM_POINTS = 1_000


@dataclass(frozen=True, kw_only=True)
class DrawnTimeline:
    """Memory in use at some of a run's events, enough for drawing it: one entry per point in each column."""

    event: tuple[int, ...]
    time_ns: tuple[int, ...]
    total_bytes: tuple[int, ...]
    category_bytes: dict[Category, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """One device over the whole run."""

    name: str
    peak: Peak
    current: Breakdown
    """What is in use when the ledger ends."""
    steps: tuple[StepPeak, ...]
    course: Course
    """Steps, evaluations and saves."""
    modules: tuple[ModuleStats, ...]
    module_groups: tuple[ModuleGroup, ...]
    bytes_outside_modules: int
    """Bytes that no module owned at the peak."""
    largest_blocks: tuple[BlockLife, ...]
    """At the peak."""
    timeline: DrawnTimeline

    @property
    def shares_at_peak(self) -> list[Share]:
        return share_out(self.peak.breakdown)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run, ready to be shown: every figure of every view."""

    info: RunInfo
    num_events: int
    num_blocks: int
    num_steps: int
    duration_ns: int
    devices: tuple[DeviceReport, ...]
    """The main device first, the others in the order of ``Ledger.device_order``."""

    def to_json(self) -> dict[str, Any]:
        """The report in plain dictionaries, lists, strings and numbers; a category or phase is its name in small letters."""
        found: dict[str, Any] = plain(self)
        return found


def build_report(ledger: Ledger) -> Report:
    """Computes everything that the views need."""
    return Report(
        info=ledger.info,
        num_events=len(ledger.events),
        num_blocks=len(ledger.blocks),
        num_steps=len(ledger.step_starts),
        duration_ns=int(ledger.events.time_ns.max(initial=0)),
        devices=tuple(_report_device(ledger, device) for device in ledger.device_order),
    )


def _report_device(ledger: Ledger, device: int) -> DeviceReport:
    peak = find_peak(ledger, device)
    modules = gather_module_stats(ledger, device)
    return DeviceReport(
        name=ledger.devices[device].name,
        peak=peak,
        current=current_breakdown(ledger, device),
        steps=tuple(find_step_peaks(ledger, device)),
        course=find_course(ledger, device),
        modules=tuple(modules),
        module_groups=tuple(group_modules(modules)),
        bytes_outside_modules=peak.size_bytes - sum(module.own_bytes_at_peak for module in modules),
        largest_blocks=tuple(largest_blocks_at(ledger, peak.event, device, NUM_BLOCKS)),
        timeline=_draw_timeline(ledger, device),
    )


def _draw_timeline(ledger: Ledger, device: int) -> DrawnTimeline:
    points = trace_total(ledger, device).reduced(NUM_POINTS)
    return DrawnTimeline(
        event=tuple(points.events.tolist()),
        time_ns=tuple(np.append(ledger.events.time_ns, 0)[points.events].tolist()),
        total_bytes=tuple(points.totals.tolist()),
        category_bytes={
            category: tuple(timeline.at(points.events).tolist()) for category, timeline in trace_categories(ledger, device).items()
        },
    )


def plain(value: Any) -> Any:
    """A value in plain dictionaries, lists, strings and numbers."""
    if isinstance(value, IntEnum):
        return value.name.lower()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value
