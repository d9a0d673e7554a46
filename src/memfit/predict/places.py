"""Which of the predicted ranks each rank of a job is like, and how a ledger says so.

::

    pp 0   0 0 0 0 0 0 0 7     a rank is like the predicted one of its stage, and of its end of an axis with unequal shards
    pp 1   8 8 8 8 8 8 8 15
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memfit.ledger import Ledger
from memfit.phantom.distributed.layout import Layout


def likeness(layout: Layout, predicted: Sequence[int]) -> list[int]:
    """For every rank of the job, which of the predicted ranks it is like; -1 where none is."""
    groups = [group for group in (layout.pipeline, *layout.uneven) if len(group) > 1]

    def kind(rank: int) -> tuple[int, ...]:
        stage = _coordinate(rank, layout.pipeline) if len(layout.pipeline) > 1 else 0
        others = [group for group in groups if group != layout.pipeline]
        return stage, *(int(_coordinate(rank, group) == len(group) - 1) for group in others)

    by_kind: dict[tuple[int, ...], int] = {}
    for rank in sorted(predicted):
        by_kind.setdefault(kind(rank), rank)
    alone = set(predicted)
    return [rank if rank in alone else by_kind.get(kind(rank), -1) for rank in range(layout.world_size)]


def _coordinate(rank: int, group: Sequence[int]) -> int:
    """Where a rank is along the axis that a group shows; ranks are laid out regularly."""
    return rank // (group[1] - group[0]) % len(group)


def with_place(ledger: Ledger, layout: Layout, like: Sequence[int]) -> Ledger:
    """The ledger of a predicted rank, which says what job it is from and whom it stands for."""
    rank = ledger.info.rank
    mesh = ",".join(f"{name}={size}" for name, size in layout.axes)
    stands_for = _ranges([number for number, other in enumerate(like) if other == rank])
    return replace(ledger, info=replace(ledger.info, mesh=mesh, stands_for=stands_for))


def _ranges(ranks: Sequence[int]) -> str:
    """``0-62,64``."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    return ",".join("-".join(map(str, part)) for part in found)
