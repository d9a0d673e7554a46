"""The log of a real allocator, as requests.

::

    alloc, free_requested, free_completed      paired by address: what the program asked for
    segment_alloc, segment_map                 the allocator's own doing; where a new segment lay decides later ties
    segment_free, segment_unmap                cached memory was given back: taken as a call of empty_cache()
    oom, snapshot, annotate, ...               no request

A recording that began late frees blocks it never saw allocated: they are taken to have been there first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.allocator.requests import RequestKind, Requests
from memfit.allocator.settings import SIZE_LIMIT
from memfit.ledger.schema import Array
from memfit.units import format_bytes

ACTIONS: Final = (
    *("alloc", "free_requested", "free_completed"),
    *("segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    "oom",
)
"""The names of the actions that memfit reads, each at its code."""
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM, OTHER = range(9)
CODES: Final = {name: code for code, name in enumerate(ACTIONS)}
"""By name; every other name is ``OTHER``."""
OTHER_ACTIONS: Final = ("snapshot", "annotate", "user_defined")
"""What is logged beside them."""

ADDRESS_LIMIT: Final = 2**57
"""No real log has addresses as large as this."""


class ContradictionError(ValueError):
    """The log cannot be that of one allocator."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Entries:
    """A log as columns."""

    action: Array
    """An index into ``ACTIONS``, or ``OTHER``."""
    address: Array
    size: Array
    """Of a block as asked for, of a segment its own."""
    stream: Array
    pool: Array
    """The number of the private pool, 0 for the default one."""

    def check(self) -> None:
        """Refuses numbers that no allocator could have logged."""
        for name, limit in (("size", SIZE_LIMIT), ("address", ADDRESS_LIMIT)):
            values = getattr(self, name)
            absurd = np.flatnonzero((self.action < OOM) & ((values <= 0) | (values >= limit)))
            if len(absurd):
                raise ContradictionError(f"entry {absurd[0]} has the {name} {values[absurd[0]]}, which cannot be")

    def after(self, earlier: Entries) -> Entries:
        """These entries, behind others."""
        names = ("action", "address", "size", "stream", "pool")
        return Entries(**{name: np.concatenate([getattr(earlier, name), getattr(self, name)]) for name in names})

    def where(self, chosen: Array | slice, action: int) -> Entries:
        """Some of these entries, as another action."""
        names = ("address", "size", "stream", "pool")
        columns = {name: getattr(self, name)[chosen] for name in names}
        return Entries(action=np.full(len(columns["size"]), action), **columns)


def requests_from_entries(entries: Entries, survivors: Entries, **about: Any) -> Requests:
    """The requests of a log; ``survivors`` are the blocks in use at its end, ``about`` what else the source says of itself."""
    entries.check()
    survivors.check()
    earlier = _find_earlier(entries, survivors)
    whole = entries.after(earlier)
    number = _number_blocks(whole, len(earlier.action))
    _refuse_overlaps(whole, len(earlier.action))
    kind = _request_kinds(whole)
    row = np.flatnonzero(kind >= 0)
    allocates = kind[row] == RequestKind.ALLOC
    segment_address, segment_size = _new_segments(whole)
    return Requests(
        kind=kind[row],
        block=number[row],
        size=np.where(allocates, whole.size[row], 0),
        stream=np.unique(whole.stream[row], return_inverse=True)[1],
        pool=whole.pool[row],
        event=np.maximum(row - len(earlier.action), 0),
        segment_address=segment_address[row],
        segment_size=segment_size[row],
        num_blocks=int(number.max(initial=-1)) + 1,
        num_events=len(entries.action),
        **about | {"oddities": (*about.get("oddities", ()), *_oddities(earlier))},
    )


# -- blocks ------------------------------------------------------------------------------------------------------------------


def _by_block(entries: Entries) -> tuple[Array, Array]:
    """The entries about blocks, by address and then in order; and which of them is the first at its address."""
    about_blocks = np.flatnonzero(entries.action <= FREE_COMPLETED)
    order = about_blocks[np.argsort(entries.address[about_blocks], kind="stable")]
    first = np.ones(len(order), dtype=bool)
    first[1:] = entries.address[order[1:]] != entries.address[order[:-1]]
    return order, first


def _find_earlier(entries: Entries, survivors: Entries) -> Entries:
    """The entries that must have come before the log began."""
    order, first = _by_block(entries)
    last = np.roll(first, -1)
    unseen = order[first & (entries.action[order] != ALLOC)]
    pending = unseen[entries.action[unseen] == FREE_COMPLETED]
    live_at_end = entries.address[order[last & (entries.action[order] != FREE_COMPLETED)]]
    untouched = np.flatnonzero(~np.isin(survivors.address, live_at_end))
    frees = entries.where(pending, FREE_REQUESTED)
    return frees.after(entries.where(unseen, ALLOC)).after(survivors.where(untouched, ALLOC))


def _number_blocks(entries: Entries, num_earlier: int) -> Array:
    """Per entry the number of its block, -1 if it is about none. Each must be allocated, freed and completed in turn."""
    order, first = _by_block(entries)
    action, size = entries.action[order], entries.size[order]
    in_turn = np.where(first | (np.roll(action, 1) == FREE_COMPLETED), action == ALLOC, action == np.roll(action, 1) + 1)
    fits = (action == ALLOC) | (size == np.roll(size, 1))
    wrong = np.flatnonzero(~(in_turn & fits))
    if len(wrong):
        entry = order[wrong].min()
        _refuse(entries, entry, num_earlier, sized_right=bool(fits[order == entry][0]))
    number = np.full(len(entries.action), -1, dtype=np.int64)
    number[order] = np.cumsum(action == ALLOC) - 1
    return number


def _refuse(entries: Entries, entry: int, num_earlier: int, *, sized_right: bool) -> None:
    what = f"{ACTIONS[entries.action[entry]]} of {entries.size[entry]} bytes at {entries.address[entry]:#x}"
    if not sized_right:
        problem = "differs in size from the allocation there"
    elif entries.action[entry] == ALLOC:
        problem = "finds that address in use"
    else:
        problem = "comes out of turn: no such block is allocated then"
    raise ContradictionError(f"entry {entry - num_earlier}, {what}, {problem}")


def _refuse_overlaps(entries: Entries, num_earlier: int) -> None:
    changes = np.flatnonzero((entries.action == ALLOC) | (entries.action == FREE_COMPLETED))
    in_use = _InUse()
    columns = (changes, entries.action[changes], entries.address[changes], entries.size[changes])
    for entry, action, address, size in zip(*(column.tolist() for column in columns), strict=True):
        if action == FREE_COMPLETED:
            in_use.remove(address)
        elif in_use.touches(address, address + size):
            raise ContradictionError(f"entry {entry - num_earlier} allocates {size} bytes at {address:#x}, over a block in use")
        else:
            in_use.add(address, address + size)


class _InUse:
    """Stretches of addresses that do not overlap, in order, in groups that stay small: one long list would take ever longer."""

    _LARGEST_GROUP: Final = 1000

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """The first address of each group."""
        self._groups: list[list[int]] = []
        self._ends: dict[int, int] = {}

    def touches(self, start: int, end: int) -> bool:
        """Is any of it in use?"""
        number = bisect_right(self._firsts, start) - 1
        group = self._groups[max(number, 0)] if self._groups else []
        place = bisect_right(group, start)
        if place and self._ends[group[place - 1]] > start:
            return True
        following = group[place : place + 1] or self._firsts[number + 1 : number + 2]
        return bool(following) and following[0] < end

    def add(self, start: int, end: int) -> None:
        self._ends[start] = end
        if not self._groups:
            self._firsts, self._groups = [start], [[start]]
            return
        number = max(bisect_right(self._firsts, start) - 1, 0)
        group = self._groups[number]
        insort(group, start)
        if len(group) > self._LARGEST_GROUP:
            middle = len(group) // 2
            self._groups[number : number + 1] = [group[:middle], group[middle:]]
            self._firsts.insert(number + 1, group[middle])
        self._firsts[number] = self._groups[number][0]

    def remove(self, start: int) -> None:
        number = bisect_right(self._firsts, start) - 1
        group = self._groups[number]
        del group[bisect_left(group, start)], self._ends[start]
        if group:
            self._firsts[number] = group[0]
        else:
            del self._groups[number], self._firsts[number]


# -- requests ----------------------------------------------------------------------------------------------------------------


def _request_kinds(entries: Entries) -> Array:
    """Per entry the ``RequestKind``, -1 where it is no request."""
    action, address, pool = entries.action, entries.address, entries.pool
    kind = np.full(len(action), -1, dtype=np.int64)
    kind[action == ALLOC] = RequestKind.ALLOC
    kind[action == FREE_REQUESTED] = RequestKind.FREE_REQUESTED
    kind[action == FREE_COMPLETED] = RequestKind.FREE_COMPLETED
    at_once = np.flatnonzero((action[:-1] == FREE_REQUESTED) & (action[1:] == FREE_COMPLETED) & (address[:-1] == address[1:]))
    kind[at_once], kind[at_once + 1] = RequestKind.FREE, -1
    gives_back = (action == SEGMENT_FREE) | (action == SEGMENT_UNMAP)
    kind[gives_back & (pool > 0)] = RequestKind.RELEASE_POOL
    by_default = gives_back & (pool == 0)
    kind[by_default & ~np.append(False, by_default[:-1])] = RequestKind.EMPTY_CACHE
    return kind


def _new_segments(entries: Entries) -> tuple[Array, Array]:
    """Per entry the address and size of the segment that was obtained for it, if one was."""
    address, size = np.zeros_like(entries.address), np.zeros_like(entries.size)
    opened = np.flatnonzero((entries.action[:-1] == SEGMENT_ALLOC) & (entries.action[1:] == ALLOC))
    opened = opened[entries.address[opened] == entries.address[opened + 1]]
    address[opened + 1], size[opened + 1] = entries.address[opened], entries.size[opened]
    return address, size


def _oddities(earlier: Entries) -> list[str]:
    sizes = earlier.size[earlier.action == ALLOC]
    if not len(sizes):
        return []
    what = f"{len(sizes)} blocks ({format_bytes(int(sizes.sum()))})"
    return [f"the recording began late: {what} that it never saw allocated count as there first"]
