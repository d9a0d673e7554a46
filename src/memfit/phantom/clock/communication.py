"""Collectives on the clock: each runs on a stream of its group's own, behind what the current stream has so far.

Whoever waits for one waits on the current stream, as NCCL's ``work.wait()`` does; the host goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from memfit.phantom.clock.describe import name_of
from memfit.phantom.device.streams import current_stream_number
from memfit.timing import collectives
from memfit.timing.links import Interconnect
from memfit.timing.operators.calls import Bound, Cost
from memfit.timing.timeline import Timeline
from memfit.torch_compat.distributed import ProcessGroup, resolve_group

Seconds = Callable[[float, int, Interconnect, bool], float]

_KINDS: Final[dict[str, Seconds]] = {
    "allreduce": collectives.all_reduce_seconds,
    "all_reduce": collectives.all_reduce_seconds,
    "allgather": collectives.all_gather_seconds,
    "all_gather": collectives.all_gather_seconds,
    "reduce_scatter": collectives.reduce_scatter_seconds,
    "alltoall": collectives.all_to_all_seconds,
    "all_to_all": collectives.all_to_all_seconds,
    "broadcast": collectives.broadcast_seconds,
    "reduce": collectives.broadcast_seconds,
    "gather": collectives.all_gather_seconds,
    "scatter": collectives.broadcast_seconds,
}
"""What prices an operator, by what is in its name. The bytes are those of its larger side."""


@dataclass
class GroupUse:
    """What a process group was used for."""

    description: str
    """``mesh_tp``; empty for the whole world and without a name."""
    ranks: tuple[int, ...]
    peers: set[int] = field(default_factory=set)
    """Ranks of this node that an all-to-all sends to or receives from, by their places in the group."""


class Communication:
    """Advances the timeline by collectives."""

    def __init__(self, timeline: Timeline, links: Interconnect, number: Callable[[Cost], int], host_seconds: float) -> None:
        self._timeline, self._links, self._number, self._host_seconds = timeline, links, number, host_seconds
        self.last_end = 0.0
        """When the last collective that was issued will be over."""
        self.last_group = ""
        """The name of the group that it was issued in."""
        self._groups: dict[str, int] = {}
        self.group_names: dict[int, str] = {}
        """What each group is called, by its number; empty where it has no name but a number."""
        self.uses: dict[str, GroupUse] = {}
        """What each group is used for, by its name in torch."""
        self._under_way: dict[int, float] = {}
        """When functional collectives that were not waited for yet will be over, by the storage of what they give."""

    @property
    def host_seconds(self) -> float:
        """When the host is done with what it has issued so far."""
        return self._timeline.host

    @property
    def num_steps(self) -> int:
        """How many steps have begun."""
        return len(self._timeline.steps)

    def tick_of(self, func: Any) -> Callable[[Any, Any, Any, int], None] | None:
        name = name_of(func)
        if "wait_tensor" in name:
            return lambda func, args, result, scope: self._wait_for(args[0])
        if name in ("c10d::send", "c10d::recv_", "c10d::recv_any_source_"):
            return partial(self._send, name)
        kind = next((known for known in sorted(_KINDS, key=len, reverse=True) if known in name), None)
        return None if kind is None else partial(self._collect, name, _KINDS[kind])

    def wait(self, until: float | None = None) -> None:
        """The current stream waits for a collective: for the last one where none is named."""
        self._timeline.wait(current_stream_number(), self.last_end if until is None else until)

    def _wait_for(self, given: torch.Tensor) -> None:
        """For the collective that gives this tensor. Compiled code waits in backward again, for what was there in forward: others
        that were issued since are no matter."""
        until = self._under_way.pop(given.untyped_storage()._cdata, None)
        if until is not None:
            self.wait(until)

    def _collect(self, name: str, seconds: Seconds, func: Any, args: Any, result: Any, scope: int) -> None:
        group, ranks = _group_of(args)
        size = max((_bytes_of(value) for value in (*args, result)), default=0)
        spent = seconds(size, len(ranks), self._links, _are_adjacent(ranks, self._links.gpus_per_node))
        if seconds is collectives.all_gather_seconds:
            self._timeline.spend(len(ranks) * self._links.host_seconds_per_rank)
        self._note_use(group, ranks, self._peers(args, ranks) if seconds is collectives.all_to_all_seconds else ())
        self._issue(name, spent, size, group, scope)
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, torch.Tensor) and name.startswith("_c10d_functional"):
                self._under_way[tensor.untyped_storage()._cdata] = self.last_end

    def _send(self, name: str, func: Any, args: Any, result: Any, scope: int) -> None:
        group, ranks = _group_of(args)
        other = next((value for value in args if isinstance(value, int)), 0)
        mine, theirs = dist.get_rank(), ranks[other] if 0 <= other < len(ranks) else other
        per_node = self._links.gpus_per_node
        size = _bytes_of(args)
        spent = collectives.point_to_point_seconds(size, self._links, mine // per_node == theirs // per_node)
        self._note_use(group, ranks)
        self._issue(name, spent, size, group, scope)

    def _peers(self, args: Any, ranks: list[int]) -> Iterable[int]:
        """Whom an all-to-all sends to or receives from, of those in this node. What is split by sizes leaves out those with none:
        torch's context parallelism passes keys and values to a neighbour like that."""
        mine, per_node = dist.get_rank(), self._links.gpus_per_node
        splits = [value for value in args if isinstance(value, (list, tuple)) and len(value) == len(ranks)]
        sizes = [split for split in splits if all(isinstance(size, int) for size in split)]
        used = {place for split in sizes for place, size in enumerate(split) if size} if sizes else range(len(ranks))
        return (place for place in used if ranks[place] != mine and ranks[place] // per_node == mine // per_node)

    def _note_use(self, group: str, ranks: list[int], peers: Iterable[int] = ()) -> None:
        known = self.uses.get(group)
        if known is None:
            known = self.uses[group] = GroupUse(_description_of(group), tuple(ranks))
        known.peers.update(peers)

    def _issue(self, name: str, seconds: float, size: float, group: str, scope: int) -> None:
        self._timeline.spend(self._host_seconds)
        cost = Cost(name, seconds, Bound.LINK, moved_bytes=size)
        number = self._groups.get(group)
        if number is None:
            number = self._groups[group] = len(self._groups)
            self.group_names[number] = _description_of(group)
        self.last_group = group
        self.last_end = self._timeline.communicate(current_stream_number(), number, seconds, self._number(cost), scope)


def _group_of(args: Any) -> tuple[str, list[int]]:
    """The name of the group that an operator is given, and its ranks in the world."""
    for value in args:
        group = None
        if isinstance(value, torch.ScriptObject):
            try:
                group = ProcessGroup.unbox(value)
            except (RuntimeError, TypeError):  # an operation that reduces is an object too
                continue
        elif isinstance(value, str):
            try:
                group = resolve_group(value)
            except RuntimeError:  # it is the word for a reduction
                continue
        if group is not None:
            return group.group_name, dist.get_process_group_ranks(group)
    return "", list(range(dist.get_world_size()))


def _description_of(group: str) -> str:
    """``mesh_tp``, the description that the group was made with; empty for the whole world and without a name."""
    if not group:
        return ""
    described: str = resolve_group(group).group_desc
    return "" if described in ("default_pg", "undefined") else described


def _are_adjacent(ranks: list[int], gpus_per_node: int) -> bool:
    """Do they fill nodes one after the other, or lie in one node?"""
    if len({rank // gpus_per_node for rank in ranks}) == 1:
        return True
    return ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def _bytes_of(values: Any) -> int:
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, (list, tuple)):
        return sum(_bytes_of(value) for value in values)
    return 0
