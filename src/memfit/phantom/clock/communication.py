"""Collectives on the clock. Each runs on its group's own stream, after the work already on the current stream.

Waiting for one blocks the current stream, as NCCL's ``work.wait()`` does, and not the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
"""The price function of an operator, by a part of its name. It takes the bytes of the operator's larger side."""


@dataclass
class GroupUse:
    """How a process group was used."""

    description: str
    """``mesh_tp``; empty for the whole world and without a name."""
    ranks: tuple[int, ...]
    peers: set[int] = field(default_factory=set)
    """Group ranks on this node that an all-to-all sends to or receives from."""


class Communication:
    """Advances the timeline by collectives."""

    def __init__(self, timeline: Timeline, links: Interconnect, number: Callable[[Cost], int], host_seconds: float) -> None:
        self._timeline, self._links, self._number, self._host_seconds = timeline, links, number, host_seconds
        self.last_end = 0.0
        """When the last issued collective ends."""
        self.last_group = ""
        """The name of that collective's group."""
        self._groups: dict[str, int] = {}
        self.group_names: dict[int, str] = {}
        """The description of each group, by its number; empty without one."""
        self.uses: dict[str, GroupUse] = {}
        """The use of each group, by its name in torch."""
        self._under_way: dict[int, float] = {}
        """When pending functional collectives end, by the storage of their result."""

    @property
    def host_seconds(self) -> float:
        """The host's current time."""
        return self._timeline.host

    @property
    def num_steps(self) -> int:
        """Number of steps begun so far."""
        return len(self._timeline.steps)

    def tick_of(self, func: Any) -> Callable[[Any, Any, Any, int], None] | None:
        name = name_of(func)
        if "wait_tensor" in name:
            return lambda func, args, result, scope: self._wait_for(args[0])  # a tensor, or with wait_tensors a list of them
        if name in ("c10d::send", "c10d::recv_", "c10d::recv_any_source_"):
            return partial(self._send, name)
        kind = next((known for known in sorted(_KINDS, key=len, reverse=True) if known in name), None)
        return None if kind is None else partial(self._collect, name, _KINDS[kind])

    def wait(self, until: float | None = None) -> None:
        """Makes the current stream wait for a collective, by default the last one."""
        self._timeline.wait(current_stream_number(), self.last_end if until is None else until)

    def wait_for_ranks(self, seconds: float, scope: int) -> None:
        """Makes the current stream wait for ranks that are late."""
        self._issue("waiting for other ranks", seconds, 0.0, "", scope)
        self.wait()

    def _wait_for(self, given: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Waits for the collectives that produce these tensors. Compiled code waits again in backward for results of forward;
        collectives issued since then do not matter."""
        for tensor in (given,) if isinstance(given, torch.Tensor) else given:
            until = self._under_way.pop(tensor.untyped_storage()._cdata, None)
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
        """The ranks on this node that an all-to-all sends to or receives from. Ranks with a split size of zero are left out:
        torch's context parallelism sends keys and values to one neighbour that way."""
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
    """The name of the group among an operator's arguments, and the group's global ranks."""
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
    """The description that the group was made with, ``mesh_tp``; empty for the whole world or without a description."""
    if not group:
        return ""
    described: str = resolve_group(group).group_desc
    return "" if described in ("default_pg", "undefined") else described


def _are_adjacent(ranks: list[int], gpus_per_node: int) -> bool:
    """True if the ranks lie in one node or fill consecutive nodes."""
    if len({rank // gpus_per_node for rank in ranks}) == 1:
        return True
    return ranks == list(range(ranks[0], ranks[0] + len(ranks)))


def _bytes_of(values: Any) -> int:
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, (list, tuple)):
        return sum(_bytes_of(value) for value in values)
    return 0
