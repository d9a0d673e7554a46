"""What was in use at one moment of each of two runs, and what is not the same in both.

Blocks of two runs have no names in common, so they are compared by kind: one category, owned by one module, born in one phase,
made by one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from memfit.analysis.diff.compared import Compared
from memfit.analysis.modules import starred
from memfit.analysis.owners import find_owners
from memfit.analysis.peaks import Peak
from memfit.analysis.timeline import block_bytes_at
from memfit.ledger import Category, Ledger, Phase


@dataclass(frozen=True)
class BlockKind:
    """What blocks of two runs can have in common."""

    category: Category
    module: str
    """The path of the module that owns them, empty where none does."""
    phase: Phase | None
    """That they were born in, ``None`` outside all."""
    op: str


@dataclass(frozen=True, kw_only=True)
class BlockTotal:
    """Some blocks, together."""

    num_blocks: int = 0
    size_bytes: int = 0

    def __add__(self, other: BlockTotal) -> BlockTotal:
        return BlockTotal(num_blocks=self.num_blocks + other.num_blocks, size_bytes=self.size_bytes + other.size_bytes)


@dataclass(frozen=True, kw_only=True)
class HeldChange(Compared):
    """Some blocks that are more, fewer or of other sizes."""

    before_blocks: int
    after_blocks: int


@dataclass(frozen=True, kw_only=True)
class Change(HeldChange):
    """What changed by one aspect: a category, a module, a phase or an operator."""

    name: str


@dataclass(frozen=True, kw_only=True)
class BlockChange(HeldChange):
    """What changed of one kind of blocks."""

    kind: BlockKind
    """Its module has a star for each number where several are meant: all that grew, or all that shrank."""


Holdings = dict[BlockKind, BlockTotal]

_Key = TypeVar("_Key", bound=Hashable)


def hold_at(ledger: Ledger, device: int | None, peak: Peak | None, *, by_op: bool = True) -> Holdings:
    """What was in use on a device at its peak, by kind; without ``by_op``, whatever operators made it."""
    if peak is None:
        return {}
    held = block_bytes_at(ledger, peak.event)
    live = np.flatnonzero((held > 0) & (ledger.blocks.device == device))
    owners = find_owners(ledger)
    columns = (ledger.categories, owners, ledger.block_phase, ledger.blocks.op, held)
    rows = zip(*(column[live].tolist() for column in columns), strict=True)
    paths = [*(ledger.module_path(module) for module in range(len(ledger.modules))), ""]
    return _sum_up(
        (
            BlockKind(Category(category), paths[module], Phase(phase) if phase >= 0 else None, ledger.strings[op] if by_op else ""),
            BlockTotal(num_blocks=1, size_bytes=size),
        )
        for category, module, phase, op, size in rows
    )


def changes_by(
    before: Holdings, after: Holdings, name: Callable[[BlockKind], str], *, starring: bool = False
) -> tuple[Change, ...]:
    """What changed by one aspect of the kinds, the largest first. ``starring`` puts what differs in numbers only together."""
    sides = [_sum_up((name(kind), held) for kind, held in side.items()) for side in (before, after)]
    found = _gather(_changed(*sides), starred if starring else str)
    changes = [Change(name=name, **_columns(*pair)) for name, pair in found]
    return tuple(sorted(changes, key=lambda change: (*_by_size(change), change.name)))


def change_of_blocks(before: Holdings, after: Holdings) -> tuple[BlockChange, ...]:
    """The kinds of blocks that changed, the largest change first."""
    found = _gather(_changed(before, after), lambda kind: replace(kind, module=starred(kind.module)))
    changes = [BlockChange(kind=kind, **_columns(*pair)) for kind, pair in found]
    return tuple(sorted(changes, key=lambda change: (*_by_size(change), repr(change.kind))))


def _by_size(change: HeldChange) -> tuple[int, int]:
    """The same in both directions."""
    return -abs(change.change_bytes), -max(change.before_bytes, change.after_bytes)


def _sum_up(items: Iterable[tuple[_Key, BlockTotal]]) -> dict[_Key, BlockTotal]:
    totals: dict[_Key, BlockTotal] = {}
    for key, held in items:
        totals[key] = totals.get(key, BlockTotal()) + held
    return totals


def _changed(before: dict[_Key, BlockTotal], after: dict[_Key, BlockTotal]) -> dict[_Key, tuple[BlockTotal, BlockTotal]]:
    pairs = {key: (before.get(key, BlockTotal()), after.get(key, BlockTotal())) for key in {**before, **after}}
    return {key: pair for key, pair in pairs.items() if pair[0].size_bytes != pair[1].size_bytes}


def _gather(
    changed: dict[_Key, tuple[BlockTotal, BlockTotal]], common: Callable[[_Key], _Key]
) -> list[tuple[_Key, tuple[BlockTotal, BlockTotal]]]:
    """Puts changes together that go the same way and have a key in common; one that is alone keeps its own key."""
    groups: dict[tuple[_Key, bool], list[_Key]] = {}
    for key, (before, after) in changed.items():
        groups.setdefault((common(key), after.size_bytes > before.size_bytes), []).append(key)
    return [
        (shared if len(keys) > 1 else keys[0], (_total(changed[key][0] for key in keys), _total(changed[key][1] for key in keys)))
        for (shared, _), keys in groups.items()
    ]


def _total(parts: Iterable[BlockTotal]) -> BlockTotal:
    return sum(parts, start=BlockTotal())


def _columns(before: BlockTotal, after: BlockTotal) -> dict[str, int]:
    return {
        "before_bytes": before.size_bytes,
        "after_bytes": after.size_bytes,
        "before_blocks": before.num_blocks,
        "after_blocks": after.num_blocks,
    }
