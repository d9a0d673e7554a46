"""What can be done with one unit, from keeping all to computing all of it again: only what nothing else beats.

::

    calls ──> items: what is kept together      an operator; a chain of in-place operators; all random operators of the unit
          ──> frontier: bytes against seconds   exact, by adding item after item and dropping what is beaten
          ──> offloaded variants of each        as much as the link carries beside the unit's own work

Computing a unit again runs every operator that is not kept, up to the last tensor that backward needs: that is how torch does it.
So the seconds of a level are a sum, and so are its bytes; what a level frees at the peak is told by the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from memfit.plan.checkpointing.recorded import RecordedCall, RecordedUnit
from memfit.plan.policy import Action, OperatorChoice

MOST_LEVELS: Final = 400
"""The most levels of one kind of unit. Longer frontiers are thinned; each level loses less than this fraction of its bytes."""

LEAST_SHARE: Final = 0.005
"""Of a unit's forward: what takes less is not worth a choice of its own."""

LINK_SHARE: Final = 0.8
"""Of a unit's own forward: so long may copies to the host take, that they are done when the next unit needs the link."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One way to treat a unit."""

    seconds: float
    """What it costs in a step, on the GPU."""
    size_bytes: int
    """What it keeps of a unit between forward and backward."""
    choices: tuple[OperatorChoice, ...] = ()
    is_untouched: bool = False
    """Nothing is computed again, and autograd keeps what it always keeps."""


@dataclass(frozen=True)
class _Item:
    """Calls of which all are kept, or none."""

    calls: tuple[int, ...]
    seconds: float
    size_bytes: int
    is_forced: bool


def levels_of(unit: RecordedUnit, link_bytes_per_second: float | None = None) -> list[Level]:
    """The levels of a unit, least bytes first; the last one leaves it as it is. ``link_bytes_per_second`` allows offloading."""
    untouched = Level(seconds=0.0, size_bytes=unit.saved_bytes * unit.num_forwards, is_untouched=True)
    items = _items(unit)
    if unit.refusal or items is None:
        return [untouched]
    forced = [item for item in items if item.is_forced]
    free = [item for item in items if not item.is_forced and item.seconds > LEAST_SHARE * unit.seconds]
    again = sum(_seconds(unit, call) for call in unit.calls if call.is_run_again) - sum(item.seconds for item in forced)
    found = []
    for size, saved, chosen in _frontier(free):
        kept = [*forced, *chosen]
        level = Level(
            seconds=(again - saved) * unit.num_forwards,
            size_bytes=(size + sum(item.size_bytes for item in forced)) * unit.num_forwards,
            choices=_choices(unit, kept),
        )
        found.append(level)
        if link_bytes_per_second and not unit.is_compiled:
            found += _offloaded(unit, level, chosen, link_bytes_per_second)
    plain = [level for level in found[:1] if not level.choices]  # it needs no mode, and is worth a try where modes cost too much
    levels = _unbeaten(found, below=untouched)
    return [*levels, *(level for level in plain if level not in levels), untouched]


def _seconds(unit: RecordedUnit, call: RecordedCall) -> float:
    """Compilers fuse what is no product into what uses it: it is computed again anyhow, and costs next to nothing."""
    return call.seconds if call.is_product or not unit.is_compiled else 0.0


def _items(unit: RecordedUnit) -> list[_Item] | None:
    """What is kept together; ``None`` where something must be kept and cannot be."""
    chains: dict[int, list[int]] = {}
    for number in range(len(unit.calls)):
        root = number
        while (base := unit.calls[root].base) is not None:
            root = base
        chains.setdefault(root, []).append(number)
    randoms = [chain for chain in chains.values() if any(unit.calls[number].is_random for number in chain)]
    together = [tuple(sorted(number for chain in randoms for number in chain))] if randoms else []
    together += [tuple(chain) for chain in chains.values() if chain not in randoms]
    items = []
    for numbers in together:
        calls = [unit.calls[number] for number in numbers]
        is_forced = any(call.must_keep for call in calls)
        if not all(call.can_keep for call in calls):
            if is_forced:
                return None
            continue
        seconds = sum(_seconds(unit, call) for call in calls if call.is_run_again)
        items.append(_Item(numbers, seconds, sum(call.size_bytes for call in calls), is_forced))
    return items


def _frontier(items: list[_Item]) -> list[tuple[int, float, list[_Item]]]:
    """All sets of items that no other set beats in both bytes and seconds saved, least bytes first."""
    sets: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for number, item in enumerate(items):
        larger = [(size + item.size_bytes, saved + item.seconds, (*chosen, number)) for size, saved, chosen in sets]
        best, merged = -1.0, []
        for entry in sorted([*sets, *larger], key=lambda entry: (entry[0], -entry[1])):
            if entry[1] > best + 1e-12:
                best = entry[1]
                merged.append(entry)
        sets = _thinned(merged)
    return [(size, saved, [items[number] for number in chosen]) for size, saved, chosen in sets]


def _thinned(sets: list[tuple[int, float, tuple[int, ...]]]) -> list[tuple[int, float, tuple[int, ...]]]:
    if len(sets) <= MOST_LEVELS:
        return sets
    step = sets[-1][0] / MOST_LEVELS
    last_of_bin: dict[int, tuple[int, float, tuple[int, ...]]] = {0: sets[0]}
    for entry in sets[1:]:
        last_of_bin[1 + int(entry[0] / step)] = entry  # the best of its bin: seconds saved grow with bytes
    return list(last_of_bin.values())


def _choices(unit: RecordedUnit, items: Iterable[_Item]) -> tuple[OperatorChoice, ...]:
    calls = (unit.calls[number] for item in items for number in item.calls)
    return tuple(sorted(OperatorChoice(operator=call.operator, call=call.call) for call in calls))


def _offloaded(unit: RecordedUnit, level: Level, chosen: list[_Item], rate: float) -> list[Level]:
    """The same with what is kept on the host, as far as copies are hidden behind the unit's own work."""
    room = LINK_SHARE * unit.seconds * rate
    moved: list[_Item] = []
    for item in sorted(chosen, key=lambda item: -item.size_bytes):
        if len(item.calls) == 1 and item.size_bytes <= room:  # a chain that is changed in place would be copied half-way
            room -= item.size_bytes
            moved.append(item)
    if not moved:
        return []
    gone = {(choice.operator, choice.call) for choice in _choices(unit, moved)}
    choices = tuple(
        replace(choice, action=Action.OFFLOAD) if (choice.operator, choice.call) in gone else choice for choice in level.choices
    )
    size = sum(item.size_bytes for item in moved) * unit.num_forwards
    return [Level(seconds=level.seconds + 0.02 * size / rate, size_bytes=level.size_bytes - size, choices=choices)]


def _unbeaten(levels: list[Level], below: Level) -> list[Level]:
    """Least bytes first, each faster than all before it. What keeps as much as ``below`` is not worth computing anything again."""
    found: list[Level] = []
    for level in sorted(levels, key=lambda level: (level.size_bytes, level.seconds)):
        if (not found or level.seconds < found[-1].seconds) and (level.size_bytes < below.size_bytes or not found):
            found.append(level)
    return found
