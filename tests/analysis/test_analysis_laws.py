"""Laws that hold for the analysis of every ledger, against plain walks through its events."""

from __future__ import annotations

from collections import Counter

import numpy as np
from helpers.arbitrary_ledgers import ledgers
from hypothesis import given
from hypothesis import strategies as st

from memfit.analysis import (
    build_report,
    bytes_by_module,
    find_peak,
    find_step_peaks,
    gather_module_stats,
    largest_blocks_at,
    take_snapshots,
    trace_categories,
    trace_lifetimes,
    trace_total,
)
from memfit.analysis.timeline import breakdowns_at
from memfit.ledger import Category, EventKind, Ledger, Phase


def walk(ledger: Ledger, device: int) -> list[Counter[Category]]:
    """Bytes by category before the first event and after each, one event at a time."""
    quantum = ledger.devices[device].granularity
    held: dict[int, int] = {}
    usage: Counter[Category] = Counter()
    history = [Counter(usage)]
    for kind, block, size in zip(ledger.events.kind, ledger.events.subject, ledger.events.size, strict=True):
        if kind <= EventKind.RESIZE and ledger.blocks.device[block] == device:
            rounded = -(-int(size) // quantum) * quantum
            usage[Category(ledger.categories[block])] += rounded - held.get(block, 0)
            held[block] = rounded
        history.append(+usage)
    return history


def devices(ledger: Ledger) -> range:
    return range(len(ledger.devices))


@given(ledgers)
def test_categories_sum_to_the_total_at_every_event(ledger: Ledger):
    every_event = np.arange(-1, len(ledger.events))
    for device in devices(ledger):
        total = trace_total(ledger, device).at(every_event)
        parts = [timeline.at(every_event) for timeline in trace_categories(ledger, device).values()]
        assert np.array_equal(np.sum(parts, axis=0, dtype=np.int64), total) or not len(parts)
        assert (total >= 0).all()


@given(ledgers)
def test_breakdowns_equal_a_walk_through_the_events(ledger: Ledger):
    for device in devices(ledger):
        assert breakdowns_at(ledger, np.arange(-1, len(ledger.events)), device) == walk(ledger, device)


@given(ledgers)
def test_the_peak_is_the_maximum_of_the_timeline(ledger: Ledger):
    for device in devices(ledger):
        peak = find_peak(ledger, device)
        totals = [usage.total() for usage in walk(ledger, device)]
        assert peak.size_bytes == max(totals) == sum(peak.breakdown.values())
        assert peak.event == totals.index(max(totals)) - 1
        steps = find_step_peaks(ledger, device)
        assert len(steps) == len(ledger.step_starts) + 1
        assert max(step.peak.size_bytes for step in steps) == peak.size_bytes
        assert steps[-1].end_bytes == totals[-1]
        assert all(step.step == step.peak.step for step in steps)


@given(ledgers, st.integers(3, 40))
def test_reducing_keeps_the_peak_and_the_end(ledger: Ledger, num_points: int):
    for device in devices(ledger):
        timeline = trace_total(ledger, device)
        reduced = timeline.reduced(num_points)
        assert len(reduced.events) <= num_points
        assert reduced.totals.max() == timeline.totals.max()
        assert reduced.totals[-1] == timeline.totals[-1]
        assert np.array_equal(timeline.at(reduced.events), reduced.totals)
        assert (np.diff(reduced.events) > 0).all()


@given(ledgers)
def test_module_peaks_equal_a_walk_through_their_scopes(ledger: Ledger):
    for device in devices(ledger):
        totals = [usage.total() for usage in walk(ledger, device)]
        for module in gather_module_stats(ledger, device):
            assert module.peak_forward_bytes == _highest(ledger, totals, module.module, Phase.FORWARD)
            assert module.peak_backward_bytes == _highest(ledger, totals, module.module, Phase.BACKWARD, Phase.RECOMPUTE)


def _highest(ledger: Ledger, totals: list[int], module: int, *phases: Phase) -> int:
    scopes = np.flatnonzero((ledger.scopes.module == module) & np.isin(ledger.scopes.phase, phases))
    return max((max(totals[ledger.scope_enter[scope] + 1 : ledger.scope_exit[scope] + 2]) for scope in scopes), default=0)


@given(ledgers)
def test_snapshots_equal_a_walk_through_the_events(ledger: Ledger):
    snapshots = take_snapshots(ledger)
    assert [(s.scope, s.module, s.phase) for s in snapshots] == [
        (scope, ledger.scopes.module[scope], ledger.scopes.phase[scope]) for scope in range(len(ledger.scopes))
    ]
    for device in devices(ledger):
        history, name = walk(ledger, device), ledger.devices[device].name
        for scope, enter, leave in zip(snapshots, ledger.scope_enter, ledger.scope_exit, strict=True):
            inside = history[enter + 1 : leave + 2]
            assert scope.enter[name] == inside[0]
            assert scope.peak[name] == max(inside, key=Counter.total)
            assert scope.exit is None if leave == len(ledger.events) else scope.exit is not None and scope.exit[name] == inside[-1]


@given(ledgers)
def test_modules_share_out_everything_in_use(ledger: Ledger):
    for device in devices(ledger):
        event = len(ledger.events) // 2
        total = trace_total(ledger, device).at(np.array([event]))[0]
        assert bytes_by_module(ledger, event, device).sum() == total
        assert sum(life.size_bytes for life in largest_blocks_at(ledger, event, device, len(ledger.blocks))) == total


@given(ledgers)
def test_parameters_of_a_module_equal_a_walk_up_its_parents(ledger: Ledger):
    for device in devices(ledger):
        for module in gather_module_stats(ledger, device):
            assert module.parameter_bytes == _held(ledger, device, module.module, Category.PARAMETER, Category.SHARDED_PARAMETER)
            assert module.buffer_bytes == _held(ledger, device, module.module, Category.BUFFER)


def _held(ledger: Ledger, device: int, module: int, *categories: Category) -> int:
    last = _last_used(ledger, module)
    blocks = {
        block
        for block, role, holder in zip(ledger.roles.block, ledger.roles.role, ledger.roles.module, strict=True)
        if role in categories and module in _ancestry(ledger, holder) and ledger.blocks.device[block] == device
    }
    return sum(int(ledger.block_peak_bytes[block]) for block in blocks if ledger.birth[block] <= last < ledger.death[block])


def _ancestry(ledger: Ledger, module: int) -> list[int]:
    return [module, *_ancestry(ledger, ledger.modules.parent[module])] if module >= 0 else []


def _last_used(ledger: Ledger, module: int) -> int:
    end = len(ledger.events) - 1
    forward = (ledger.scopes.module == module) & (ledger.scopes.phase == Phase.FORWARD)
    if module < 0:
        return end
    if not forward.any():
        return _last_used(ledger, ledger.modules.parent[module])
    return min(int(ledger.scope_exit[forward].max()), end)


@given(ledgers)
def test_lives_are_within_the_ledger(ledger: Ledger):
    lives = trace_lifetimes(ledger)
    assert len(lives) == len(ledger.blocks)
    for life in lives:
        assert ledger.events.subject[life.birth_event] == life.block
        assert life.death_event is None or life.birth_event < life.death_event < len(ledger.events)
        assert life.lifetime_ns >= 0


@given(ledgers)
def test_every_ledger_has_a_report(ledger: Ledger):
    report = build_report(ledger)
    assert report == build_report(ledger)
    assert {device.name for device in report.devices} == {device.name for device in ledger.devices}
    assert report.to_json()["num_events"] == len(ledger.events)
