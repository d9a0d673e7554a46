"""All ranks of a job, by one of each kind.

::

    rank 0 ──> Layout ──> kinds_of(layout): which ranks can differ          one stage of a pipeline from another
                              │                                             the first and the last of an axis with unequal shards
                              v                                             the last rank of the world
                          one of each kind, side by side, each in a child process of its own
                              │
                              v
                          JobPrediction ── the verdict is that of the rank that is closest to its GPU's end, or furthest past it

The cost is that of the kinds, whatever the size of the world.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from memfit.allocator import Verdict
from memfit.drawing import Drawn
from memfit.errors import ConfigError, MemfitError
from memfit.job.options import Ranks
from memfit.ledger import Ledger
from memfit.phantom.distributed.layout import Layout
from memfit.predict.result import Prediction
from memfit.units import Bytes, format_bytes
from memfit.workers.lanes import num_cores

_TIMES: Final = re.compile(r" \(\d+ times\)$")


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """The prediction of one rank, and what it says about the others."""

    prediction: Prediction
    layout: Layout
    stage_outputs: dict[int, Any] = field(default_factory=dict)
    """What the stages of this rank send to the next, by their number."""
    is_regular: bool = False
    """Is it known that ranks differ in nothing but what their place on the mesh makes different?"""


PredictRank = Callable[[int, dict[int, Any]], RankOutcome]
"""``predict_rank(rank, stage_outputs)``, in a process of its own."""


@dataclass(frozen=True, kw_only=True)
class RankKind:
    """Ranks that need the same memory."""

    rank: int
    """The one that is predicted."""
    label: str
    """Where it is in the job: ``pp 3, dp 0, tp 0``."""
    num_ranks: int
    """How many ranks it stands for, itself included."""


@dataclass(frozen=True, kw_only=True)
class RankPrediction(RankKind):
    """One kind of rank, and what it needs."""

    prediction: Prediction

    def to_json(self) -> dict[str, Any]:
        verdict = self.prediction.verdict_alone
        figures = ("peak_allocated", "peak_reserved", "smallest_fit", "needed", "margin", "where")
        found = {"rank": self.rank, "kind": self.label, "num_ranks": self.num_ranks, "fits": self.prediction.fits}
        return found | {name: getattr(verdict, name) for name in figures}


@dataclass(frozen=True, kw_only=True, eq=False)
class JobPrediction(Drawn):
    """A whole job: one prediction for each kind of rank. It fits if all of them do."""

    world_size: int
    kinds: tuple[RankPrediction, ...]
    """By rank."""
    axes: tuple[tuple[str, int], ...] = ()
    """The names and sizes of the job's mesh."""

    def __repr__(self) -> str:
        worst = self.worst
        return (
            f"JobPrediction({self.world_size} ranks of {len(self.kinds)} kinds; rank {worst.rank} needs most: "
            f"{format_bytes(worst.prediction.peak_allocated)} allocated, {format_bytes(worst.prediction.peak_reserved)} reserved)"
        )

    @property
    def worst(self) -> RankPrediction:
        """The kind that is closest to the end of its GPU's memory, or furthest past it."""

        def severity(kind: RankPrediction) -> tuple[bool, int, int, int]:
            found = kind.prediction
            return found.fits, found.verdict_alone.margin, -found.peak_reserved, -found.peak_allocated

        return min(self.kinds, key=severity)

    @property
    def fits(self) -> bool:
        return all(kind.prediction.fits for kind in self.kinds)

    @property
    def verdict(self) -> Verdict:
        """Of the worst rank."""
        return self.worst.prediction.verdict

    @property
    def peak_allocated(self) -> Bytes:
        """The largest of any rank."""
        return max(kind.prediction.peak_allocated for kind in self.kinds)

    @property
    def peak_reserved(self) -> Bytes:
        """The largest of any rank."""
        return max(kind.prediction.peak_reserved for kind in self.kinds)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Of all ranks, each once: how often it was needed, the first of them says."""
        said = (sentence for kind in self.kinds for sentence in kind.prediction.assumptions)
        found: dict[str, str] = {}
        for sentence in said:
            found.setdefault(_TIMES.sub("", sentence), sentence)
        return tuple(found.values())

    def about(self, asked: Mapping[str, Any], command: str = "", made_at: str = "") -> JobPrediction:
        """The same with ledgers that say what was asked for, by which command and when."""
        kinds = tuple(replace(kind, prediction=kind.prediction.about(asked, command, made_at)) for kind in self.kinds)
        return replace(self, kinds=kinds)

    def __getitem__(self, rank: int) -> Prediction:
        """The prediction of a rank that was predicted."""
        for kind in self.kinds:
            if kind.rank == rank:
                return kind.prediction
        raise KeyError(f"rank {rank} is like another: {', '.join(str(kind.rank) for kind in self.kinds)} were predicted")


def predict_ranks(predict_rank: PredictRank, ranks: Ranks, world_size: int, *, side_by_side: bool = True) -> JobPrediction:
    """One of each kind of rank, or those that are named. The first one says how the others are arranged."""
    named = None if isinstance(ranks, str) else sorted(set(ranks))
    check_ranks(ranks, world_size)
    first_rank, last_rank = (0, world_size - 1) if named is None else (named[0], named[-1])
    num_lanes = num_cores() if side_by_side else 1
    with ThreadPoolExecutor(num_lanes) as pool:
        # The last one is predicted whatever the first one shows of the others, so that both begin at once.
        ahead = pool.submit(_named, predict_rank, last_rank, {}) if num_lanes > 1 and last_rank > first_rank else None
        first = predict_rank(first_rank, {})
        kinds = kinds_of(first.layout) if named is None else [_alone(rank, first.layout) for rank in named]

        def see(rank: int) -> RankOutcome:
            return ahead.result() if ahead is not None and rank == last_rank else _named(predict_rank, rank, first.stage_outputs)

        twin = _twin_of_last(kinds, first) if named is None else None
        others = [kind.rank for kind in kinds[1:] if kind.rank != twin]
        by_rank = {first_rank: first, **dict(zip(others, pool.map(see, others), strict=True))}
        if twin is not None and by_rank[last_rank].layout.uneven:
            by_rank[twin] = see(twin)
    if len(by_rank) < len(kinds):
        kinds = _kinds_among(sorted(by_rank), first.layout)
    seen = [by_rank[kind.rank] for kind in kinds]
    like = likeness(first.layout, [kind.rank for kind in kinds])
    found = (
        RankPrediction(
            rank=kind.rank,
            label=kind.label,
            num_ranks=kind.num_ranks,
            prediction=each.prediction.relabelled(with_place(each.prediction.ledger, first.layout, like).info),
        )
        for kind, each in zip(kinds, seen, strict=True)
    )
    kinds_by_rank = tuple(sorted(found, key=lambda kind: kind.rank))
    return JobPrediction(world_size=first.layout.world_size, kinds=kinds_by_rank, axes=first.layout.axes)


def check_ranks(ranks: Ranks, world_size: int) -> None:
    """Refuses what cannot be meant."""
    if isinstance(ranks, str):
        if ranks != "all":
            raise ConfigError(f"cannot read {ranks!r} as ranks: say all, or numbers with commas between")
    elif not ranks or not all(0 <= rank < world_size for rank in ranks):
        raise ConfigError(f"cannot predict the ranks {list(ranks)} of {world_size} processes: name some, each below their number")


def _named(predict_rank: PredictRank, rank: int, stage_outputs: dict[int, Any]) -> RankOutcome:
    try:
        return predict_rank(rank, stage_outputs)
    except MemfitError as error:
        error.add_note(f"This was rank {rank}.")
        raise


def kinds_of(layout: Layout) -> list[RankKind]:
    """The ranks of which no other is known to be like, rank 0 first, as rank 0 sees the job.

    Ranks are laid out regularly: what holds for rank 0's neighbour along an axis holds for every rank's.
    """
    unequal = [group for group in layout.uneven if len(group) > 1 and group != layout.pipeline]
    ends = [sum(offsets) for offsets in itertools.product(*((0, group[-1] - group[0]) for group in unequal))]
    found = {stage + end for stage in layout.pipeline or (0,) for end in ends if stage + end < layout.world_size}
    return _kinds_among(sorted(found | {layout.world_size - 1}), layout)


def _kinds_among(ranks: Sequence[int], layout: Layout) -> list[RankKind]:
    num_alike = Counter(likeness(layout, ranks))
    return [RankKind(rank=rank, label=place_of(rank, layout), num_ranks=num_alike[rank]) for rank in ranks]


def _twin_of_last(kinds: Sequence[RankKind], first: RankOutcome) -> int | None:
    """The rank that is like the last one of the world unless that one has shards of another size: in its stage of a pipeline, the
    other one to be predicted. ``None`` where it is not known that ranks have no tasks of their own."""
    pipeline = first.layout.pipeline
    if not first.is_regular or first.layout.uneven or len(pipeline) < 2:
        return None
    twin, last = pipeline[-1], kinds[-1].rank
    return twin if twin != last and any(kind.rank == twin for kind in kinds) else None


def place_of(rank: int, layout: Layout) -> str:
    """``pp 3, dp 0, tp 1``: where a rank is on the job's mesh; its number where there is none."""
    if not layout.axes:
        return f"rank {rank} of {layout.world_size}"
    words, rest = [], rank
    for name, size in reversed(layout.axes):
        words.append(f"{name} {rest % size}")
        rest //= size
    return ", ".join(reversed(words))


def _alone(rank: int, layout: Layout) -> RankKind:
    return RankKind(rank=rank, label=place_of(rank, layout), num_ranks=1)


# -- which rank is like which ------------------------------------------------------------------------------------------------------
#
#    pp 0   0 0 0 0 0 0 0 7     a rank is like the predicted one of its stage, and of its end of an axis with unequal shards
#    pp 1   8 8 8 8 8 8 8 15


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
