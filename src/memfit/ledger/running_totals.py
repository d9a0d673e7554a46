"""What is in use now and what was at most, kept up to date as a run goes on: each question costs what happened since the last one.

A block's category is what is known of it by now. Whether a block of forward will be kept for backward is not, so all of them count
as activations; otherwise the answers are those of the ledger of everything so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from memfit.ledger.builder import LedgerBuilder
from memfit.ledger.categories import BY_PHASE, ROLE_ORDER
from memfit.ledger.schema import Array, Blocks, Category, EventKind, Events, Phase, Roles, Scopes, Slack

Totals = dict[Category, int]
"""Bytes by category; a category that holds nothing is not in it."""

_NO_ROLE = len(ROLE_ORDER)
_RANKS = np.full(len(Category), _NO_ROLE, dtype=np.int64)
_RANKS[list(ROLE_ORDER)] = np.arange(len(ROLE_ORDER))
_BY_RANK = np.array([*ROLE_ORDER, Category.OTHER], dtype=np.int64)

_FORWARDS = (Phase.FORWARD, Phase.RECOMPUTE)
_BY_BIRTH = np.full(len(Phase) + 2, Category.OTHER, dtype=np.int64)
"""By the phase a block was born in; the last two: outside all of them, and the same after a model's forward."""
for _phase, _category in (BY_PHASE | dict.fromkeys(_FORWARDS, Category.ACTIVATION)).items():
    _BY_BIRTH[_phase] = _category
_OUTSIDE, _AFTER_FORWARD = len(Phase), len(Phase) + 1
_BY_BIRTH[_AFTER_FORWARD] = Category.ACTIVATION


@dataclass
class _Peak:
    """A device at its highest moment: the level, and which block held how much."""

    level: int
    blocks: Array
    held: Array


class RunningTotals:
    """Follows a builder. ``current`` and ``peak`` are by device, and include what the builder has been told up to now."""

    def __init__(self, builder: LedgerBuilder) -> None:
        self._builder = builder
        self._taken: dict[str, int] = {}
        self._device = _Column()
        self._birth = _Column()
        self._rank = _Column()
        self._held = _Column()
        self._slack = _Column()
        self._scope_phase = _Column()
        self._scope_parent = _Column()
        self._is_after_forward = False
        self._totals: list[Array] = []
        self._peaks: list[_Peak] = []
        self.num_events = 0
        """How many events have been seen."""

    def current(self) -> dict[str, Totals]:
        """What is in use on each device."""
        self.catch_up()
        return {device.name: _as_totals(self._totals[number]) for number, device in enumerate(self._builder.devices)}

    def peak(self) -> dict[str, Totals]:
        """Each device at its highest moment since the beginning or ``restart_peak``."""
        self.catch_up()
        found = {}
        for number, device in enumerate(self._builder.devices):
            peak = self._peaks[number]
            totals = np.zeros(len(Category), dtype=np.int64)
            np.add.at(totals, self._categories(peak.blocks), peak.held)
            found[device.name] = _as_totals(totals)
        return found

    def restart_peak(self) -> None:
        """From now on, the peak is that of what follows; what is in use now counts too."""
        self.catch_up()
        self._peaks = [self._peak_now(number) for number in range(len(self._peaks))]

    # -- what happened since -----------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Reads what the builder was told since the last time."""
        fresh = self._builder.fresh_since(self._taken)
        while len(self._totals) < len(self._builder.devices):
            self._totals.append(np.zeros(len(Category), dtype=np.int64))
            self._peaks.append(_Peak(0, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)))
        self._scope_phase.extend(_joined(fresh, Scopes, "phase"))
        self._scope_parent.extend(_joined(fresh, Scopes, "parent"))
        prelude, events = (Events.concatenate(fresh.get(name, [])) for name in ("prelude", "events"))
        self._add_blocks(fresh, prelude, events)
        self._learn_roles(_joined(fresh, Roles, "block"), _joined(fresh, Roles, "role"))
        self._begin_with(prelude)
        self._apply(events)
        self.num_events += len(prelude) + len(events)

    def _add_blocks(self, fresh: dict[str, list[Any]], prelude: Events, events: Events) -> None:
        """Notes where blocks were born; a block's row may come before its event, but never after it."""
        devices, scopes = _joined(fresh, Blocks, "device"), _joined(fresh, Blocks, "scope")
        first = len(self._device)
        self._device.extend(devices)
        births = np.full(len(scopes), _OUTSIDE, dtype=np.int64)
        inside = scopes >= 0
        births[inside] = self._scope_phase.values[scopes[inside]]
        self._birth.extend(births)
        self._rank.extend(np.full(len(scopes), _NO_ROLE, dtype=np.int64))
        self._held.extend(np.zeros(len(scopes), dtype=np.int64))
        self._slack.extend(np.zeros(len(scopes), dtype=np.int64))
        self._slack.values[_joined(fresh, Slack, "block")] = _joined(fresh, Slack, "size")
        outside = events.subject[(events.kind == EventKind.ALLOC) & self._follows_a_forward(events)]
        outside = outside[outside >= first]
        outside = outside[self._birth.values[outside] == _OUTSIDE]
        self._birth.values[outside] = _AFTER_FORWARD

    def _follows_a_forward(self, events: Events) -> Array:
        """Per event: has a model's forward begun, with no backward or optimizer step since?"""
        is_enter = events.kind == EventKind.ENTER
        scopes = events.subject[is_enter]
        outer = self._scope_parent.values[scopes] == -1
        phases = self._scope_phase.values[scopes]
        marks = np.full(len(events), -1, dtype=np.int64)
        kinds = np.full(len(scopes), -1, dtype=np.int64)
        kinds[outer & (phases == Phase.FORWARD)] = 1
        kinds[outer & ((phases == Phase.BACKWARD) | (phases == Phase.OPTIMIZER))] = 0
        marks[is_enter] = kinds
        where = np.where(marks >= 0, np.arange(len(events)), -1)
        last = np.maximum.accumulate(where) if len(where) else where
        found: Array = np.where(last >= 0, marks[last] == 1, self._is_after_forward)
        if len(found):
            self._is_after_forward = bool(found[-1])
        return found

    def _learn_roles(self, blocks: Array, roles: Array) -> None:
        """What a block was learned to be moves what it holds to another category."""
        changed = np.unique(blocks)
        before = self._categories(changed)
        np.minimum.at(self._rank.values, blocks, _RANKS[roles])
        after, held, devices = self._categories(changed), self._held.values[changed], self._device.values[changed]
        for number, totals in enumerate(self._totals):
            here = devices == number
            np.subtract.at(totals, before[here], held[here])
            np.add.at(totals, after[here], held[here])

    def _begin_with(self, prelude: Events) -> None:
        """Blocks that were there before the recording: they were in use at every moment so far."""
        blocks, sizes = prelude.subject, self._rounded(prelude.subject, prelude.size)
        self._held.values[blocks] = sizes
        devices, categories = self._device.values[blocks], self._categories(blocks)
        for number, totals in enumerate(self._totals):
            here = devices == number
            np.add.at(totals, categories[here], sizes[here])
            peak = self._peaks[number]
            peak.level += int(sizes[here].sum())
            peak.blocks, peak.held = np.append(peak.blocks, blocks[here]), np.append(peak.held, sizes[here])

    def _apply(self, events: Events) -> None:
        where = np.flatnonzero(events.kind <= EventKind.RESIZE)
        blocks = events.subject[where]
        after = self._rounded(blocks, events.size[where])
        order = np.argsort(blocks, kind="stable")
        before = np.empty_like(after)
        before[order] = self._held.values[blocks[order]]
        same = np.flatnonzero(blocks[order[1:]] == blocks[order[:-1]])
        before[order[same + 1]] = after[order[same]]
        deltas, devices = after - before, self._device.values[blocks]
        for number, totals in enumerate(self._totals):
            here = devices == number
            levels = int(totals.sum()) + np.cumsum(deltas[here])
            highest = int(np.argmax(levels)) if len(levels) else 0
            if len(levels) and levels[highest] > self._peaks[number].level:
                self._peaks[number] = self._peak_after(number, int(levels[highest]), blocks[here], after[here], highest)
            np.add.at(totals, self._categories(blocks[here]), deltas[here])
        self._held.values[blocks[order]] = after[order]  # in order, so that the last one stays

    def _peak_after(self, device: int, level: int, blocks: Array, after: Array, last: int) -> _Peak:
        """What a device holds after the event at index ``last`` of those that are about to be applied."""
        held = np.where(self._device.values == device, self._held.values, 0)
        held[blocks[: last + 1]] = after[: last + 1]
        living = np.flatnonzero(held)
        return _Peak(level, living, held[living])

    def _peak_now(self, device: int) -> _Peak:
        held = np.where(self._device.values == device, self._held.values, 0)
        living = np.flatnonzero(held)
        return _Peak(int(held.sum()), living, held[living])

    def _categories(self, blocks: Array) -> Array:
        ranks = self._rank.values[blocks]
        found: Array = np.where(ranks < _NO_ROLE, _BY_RANK[ranks], _BY_BIRTH[self._birth.values[blocks]])
        return found

    def _rounded(self, blocks: Array, sizes: Array) -> Array:
        quantum = np.array([device.granularity for device in self._builder.devices] or [1], dtype=np.int64)
        quantum = quantum[self._device.values[blocks]]
        rounded: Array = -(-sizes // quantum) * quantum + np.where(sizes > 0, self._slack.values[blocks], 0)
        return rounded


class _Column:
    """Numbers that grow at the end, at a cost that does not depend on how many there are."""

    def __init__(self) -> None:
        self._room = np.empty(1024, dtype=np.int64)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Array:
        return self._room[: self._length]

    def extend(self, more: Array) -> None:
        needed = self._length + len(more)
        if needed > len(self._room):
            room = np.empty(max(needed, 2 * len(self._room)), dtype=np.int64)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : needed] = more
        self._length = needed


def _joined(fresh: dict[str, list[Any]], table: Any, name: str) -> Array:
    found: Array = getattr(table.concatenate(fresh.get(table.NAME, [])), name)
    return found


def _as_totals(totals: Array) -> Totals:
    return {Category(category): size for category, size in enumerate(totals.tolist()) if size}
