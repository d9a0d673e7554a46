"""What was in use at one moment of each of two runs, and what is not the same in both.

Blocks of two runs have no names in common, so they are compared by kind: one category, owned by one module, born in one phase,
made by one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from memfit.analysis.diff.compared import Compared
from memfit.analysis.modules import starred, starred_once
from memfit.analysis.owners import find_owners
from memfit.analysis.peaks import Peak
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
    held = ledger.block_bytes_at(peak.event)
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
    found = _gather(_changed(*sides), str, lambda _, shared: shared) if starring else _changed(*sides).items()
    changes = [Change(name=name, **_columns(*pair)) for name, pair in found]
    return tuple(sorted(changes, key=lambda change: (*_by_size(change), change.name)))


def change_of_blocks(before: Holdings, after: Holdings) -> tuple[BlockChange, ...]:
    """The kinds of blocks that changed, the largest change first."""
    found = _gather(_changed(before, after), lambda kind: kind.module, lambda kind, shared: replace(kind, module=shared))
    changes = [BlockChange(kind=kind, **_columns(*pair)) for kind, pair in found]
    return tuple(sorted(changes, key=lambda change: (*_by_size(change), repr(change.kind))))


def _by_size(change: HeldChange) -> tuple[int, int]:
    """Sort key, largest first; the same whether a is compared with b or b with a."""
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
    changed: dict[_Key, tuple[BlockTotal, BlockTotal]], module_of: Callable[[_Key], str], renamed: Callable[[_Key, str], _Key]
) -> list[tuple[_Key, tuple[BlockTotal, BlockTotal]]]:
    """Puts changes together that go the same way in modules whose names differ in numbers only; one alone keeps its own key.

    Each name is given once: where several grew and several shrank under one, a star stands for its first number alone, and where
    that does not tell them apart, the name is that of the first and the last of them.
    """

    def together(keys: Iterable[_Key], stars: Sequence[Callable[[str], str]]) -> Iterator[tuple[_Key, list[_Key]]]:
        groups: dict[_Key, tuple[list[_Key], list[_Key]]] = {}
        for key in keys:
            before, after = changed[key]
            sides = groups.setdefault(renamed(key, stars[0](module_of(key))), ([], []))
            sides[after.size_bytes > before.size_bytes].append(key)
        for shared, sides in groups.items():
            is_twice = all(len(side) > 1 for side in sides)
            if is_twice and len(stars) > 1:
                yield from together([*sides[0], *sides[1]], stars[1:])
                continue
            for side in filter(None, sides):
                in_order = sorted(map(module_of, side), key=_numbers_apart)
                ends = renamed(side[0], f"{in_order[0]} ... {in_order[-1]}")
                yield (side[0] if len(side) == 1 else ends if is_twice else shared), side

    return [
        (key, (_total(changed[each][0] for each in keys), _total(changed[each][1] for each in keys)))
        for key, keys in together(changed, (starred, starred_once))
    ]


def _numbers_apart(path: str) -> list[tuple[int, str]]:
    """Sort key: layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split(".")]


def _total(parts: Iterable[BlockTotal]) -> BlockTotal:
    return sum(parts, start=BlockTotal())


def _columns(before: BlockTotal, after: BlockTotal) -> dict[str, int]:
    return {
        "before_bytes": before.size_bytes,
        "after_bytes": after.size_bytes,
        "before_blocks": before.num_blocks,
        "after_blocks": after.num_blocks,
    }
