"""Which operators of a module are decided together, which are decided already, and the order of the rest.

::

    SACStats ──> Group ─┬─ always run again     views, and what holds memory and takes no time
                        ├─ always kept          what changes a tensor from outside; random operators where nothing is passed in
                        └─ to be decided        the others, those first that give back most memory for their time

One group has the operators that must share a fate: work in place with what it works on, and all random operators, because what they
draw depends on what was drawn before. A group can be both.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from memfit.compat.estimators.sac_data import MSPS, SACGreedyOrderMeta, SACStats


class Fate(Enum):
    RECOMPUTED = "recomputed"
    STORED = "stored"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Operators that are kept or run again together."""

    operators: tuple[int, ...]
    memory: int
    runtime: float
    fate: Fate

    @property
    def msps(self) -> float:
        return self.memory / self.runtime if self.runtime > 0 else sys.float_info.max


def groups_of(stats: SACStats) -> list[Group]:
    """All groups, in the order of their first operators."""
    changes_outside = {operator for operator, parent in stats.inplace_ops if operator == parent}
    views, random = set(stats.view_like_ops), set(stats.rand_ops)
    groups = []
    for operators in _joined(len(stats.func_names), _ties(stats)):
        members = set(operators)
        memory, runtime = sum(stats.memory[i] for i in operators), sum(stats.runtimes[i] for i in operators)
        if members & changes_outside or (stats.force_store_random and members & random):
            fate = Fate.STORED
        else:
            fate = Fate.RECOMPUTED if members & views or (memory and not runtime) else Fate.OPEN
        groups.append(Group(operators=tuple(operators), memory=memory, runtime=runtime, fate=fate))
    return groups


def in_greedy_order(groups: list[Group]) -> list[Group]:
    """What is to be decided, those first that give back most for their time."""
    return sorted((group for group in groups if group.fate is Fate.OPEN), key=lambda group: -group.msps)


def greedy_order(stats: SACStats) -> SACGreedyOrderMeta:
    """The same in PyTorch's words."""
    groups = groups_of(stats)
    in_place: dict[int, set[int]] = defaultdict(set)
    for operator, parent in stats.inplace_ops:
        in_place[parent] |= {operator, parent}
    return SACGreedyOrderMeta(
        recomputed_ops={i for group in groups if group.fate is Fate.RECOMPUTED for i in group.operators},
        stored_ops={group.operators[0] for group in groups if group.fate is Fate.STORED},
        inplace_op_groups=dict(in_place),
        random_ops_group={min(stats.rand_ops): set(stats.rand_ops)} if stats.rand_ops else {},
        msps_meta=[
            MSPS({stats.func_names[i] for i in group.operators}, group.operators[0], group.memory, group.runtime, group.msps)
            for group in in_greedy_order(groups)
        ],
    )


def _ties(stats: SACStats) -> Iterator[tuple[int, int]]:
    yield from stats.inplace_ops
    if not stats.force_store_random:
        yield from zip(stats.rand_ops, stats.rand_ops[1:], strict=False)


def _joined(count: int, ties: Iterator[tuple[int, int]]) -> list[list[int]]:
    """Numbers from 0 to before ``count``, those together that are tied to each other."""
    head = list(range(count))

    def find(i: int) -> int:
        while head[i] != i:
            i = head[i]
        return i

    for one, other in ties:
        first, second = sorted((find(one), find(other)))
        head[second] = first
    members: dict[int, list[int]] = defaultdict(list)
    for i in range(count):
        members[find(i)].append(i)
    return list(members.values())
