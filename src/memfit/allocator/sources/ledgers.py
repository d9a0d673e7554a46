"""A ledger's blocks on one device, as requests."""

from __future__ import annotations

import numpy as np

from memfit.allocator.requests import RequestKind, Requests
from memfit.errors import ConfigError
from memfit.ledger import EventKind, Ledger
from memfit.ledger.schema import Array


def requests_from_ledger(ledger: Ledger, device: str | None = None) -> Requests:
    """What the run asked of ``device``, by default the ledger's main device.

    Resizing a block to another size allocates the new memory before the old is freed, as torch does to copy the contents.
    """
    ledger.check()
    number = _choose_device(ledger, device)
    event = ledger.memory_events[ledger.blocks.device[ledger.events.subject[ledger.memory_events]] == number]
    size, before = ledger.events.size[event], _size_before(ledger, event)
    event, size, before = (column[size != before] for column in (event, size, before))
    allocates, frees = size > 0, before > 0
    number_before = _block_before(ledger.events.subject[event], allocates)[frees]
    frees_event = event[frees]
    later = _came_back_later(ledger, frees_event, size[frees])
    is_late = later < len(ledger.events)
    emptied = np.flatnonzero((ledger.events.kind == EventKind.EMPTY_CACHE) & (ledger.events.subject == number))
    stream, stream_ids = _numbered(_streams(ledger)[event[allocates]])

    # Allocations, frees and emptied caches, one after the other; then in the order of their events, an allocation before a free.
    # Memory that came back later than its block was freed comes last.
    num_allocs, num_emptied, num_late = int(allocates.sum()), len(emptied), int(is_late.sum())
    freed = np.where(is_late, RequestKind.FREE_REQUESTED, RequestKind.FREE).astype(np.uint8)
    source_event = np.concatenate((event[allocates], frees_event, emptied, later[is_late]))
    order = np.argsort(source_event, kind="stable")
    kind = np.concatenate(
        (
            np.full(num_allocs, RequestKind.ALLOC, dtype=np.uint8),
            freed,
            np.full(num_emptied, RequestKind.EMPTY_CACHE, dtype=np.uint8),
            np.full(num_late, RequestKind.FREE_COMPLETED, dtype=np.uint8),
        )
    )[order]
    block = np.concatenate((np.arange(num_allocs), number_before, np.full(num_emptied, -1), number_before[is_late]))[order]
    asked = np.concatenate((size[allocates], np.zeros(len(order) - num_allocs, dtype=np.int64)))[order]
    late_stream = stream[number_before[is_late]]
    stream = np.concatenate((stream, stream[number_before], np.zeros(num_emptied, dtype=np.int64), late_stream))[order]
    nothing = np.zeros(len(order), dtype=np.int64)
    return Requests(
        kind=kind,
        block=block,
        size=asked,
        stream=stream,
        pool=nothing,
        event=source_event[order],
        segment_address=nothing,
        segment_size=nothing,
        num_blocks=num_allocs,
        num_events=len(ledger.events),
        stream_ids=stream_ids,
        source="ledger",
        torch_version=ledger.info.versions.get("torch", ""),
        alloc_conf=ledger.info.alloc_conf,
        oddities=_oddities(ledger, number),
        ledger=ledger,
    )


def _came_back_later(ledger: Ledger, event: Array, size: Array) -> Array:
    """Per event that frees: the event after which the memory came back, ``len(events)`` where it did at once or not at all."""
    end = len(ledger.events)
    delay = np.zeros(len(ledger.blocks), dtype=np.int64)
    delay[ledger.returns.block] = np.minimum(ledger.returns.events_later, end)
    found = delay[ledger.events.subject[event]]
    later: Array = np.where((found > 0) & (size == 0), np.minimum(event + found, end), end)
    return later


def _choose_device(ledger: Ledger, device: str | None) -> int:
    names = [known.name for known in ledger.devices]
    if device is not None:
        if device not in names:
            raise ConfigError(f"the ledger has no device {device!r}; it has {', '.join(names) or 'none'}")
        return names.index(device)
    return ledger.main_device or 0


def _streams(ledger: Ledger) -> Array:
    """Per event about a block: the stream that memory allocated there comes from."""
    events = ledger.events
    stream = np.zeros(len(events), dtype=np.int64)
    stream[ledger.memory_events] = ledger.blocks.stream[events.subject[ledger.memory_events]]
    moves = np.flatnonzero(events.kind == EventKind.STREAM)
    if not len(moves):
        return stream
    # From its move on, a block's memory comes from there, until the next move: later ones are written over earlier ones.
    by_block = ledger.memory_events[np.argsort(events.subject[ledger.memory_events], kind="stable")]
    first = np.searchsorted(events.subject[by_block], events.subject[moves])
    last = np.searchsorted(events.subject[by_block], events.subject[moves], side="right")
    for move, start, end in zip(moves.tolist(), first.tolist(), last.tolist(), strict=True):
        of_block = by_block[start:end]
        stream[of_block[of_block > move]] = events.size[move]
    return stream


def _numbered(values: Array) -> tuple[Array, tuple[int, ...]]:
    """The same with the different values as numbers from 0, in their order, and those values."""
    if not len(values) or (values == values[0]).all():
        return np.zeros(len(values), dtype=np.int64), tuple(values[:1].tolist())
    distinct, numbers = np.unique(values, return_inverse=True)
    return numbers, tuple(distinct.tolist())


def _size_before(ledger: Ledger, event: Array) -> Array:
    """Per event: what its block held before."""
    block, size = ledger.events.subject[event], ledger.events.size[event]
    before, previous = np.zeros_like(size), _previous_of_block(block)
    before[previous >= 0] = size[previous[previous >= 0]]
    return before


def _block_before(block: Array, allocates: Array) -> Array:
    """Per event: the number of the allocation that its block held before it."""
    number, previous = np.cumsum(allocates) - 1, _previous_of_block(block)
    return number[previous]


def _previous_of_block(block: Array) -> Array:
    """Per event: the index of the event of the same block before it, -1 for the first."""
    if not len(block):
        return np.zeros(0, dtype=np.int64)
    index = np.arange(len(block))
    first = np.zeros(int(block.max()) + 1, dtype=np.int64)
    first[block[::-1]] = index[::-1]
    if np.bincount(block).max() <= 2:  # blocks come and go, and none is resized
        return np.where(first[block] == index, -1, first[block])
    order = np.argsort(block, kind="stable")
    previous = np.full(len(block), -1, dtype=np.int64)
    same = block[order[1:]] == block[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _oddities(ledger: Ledger, number: int) -> tuple[str, ...]:
    found = []
    if not ledger.info.complete:
        found.append(f"the ledger is incomplete: {ledger.info.problem}")
    others = [known.name for i, known in enumerate(ledger.devices) if i != number and known.is_cuda]
    if others:
        found.append(f"counted on {ledger.devices[number].name} only; the ledger also has {', '.join(others)}")
    return tuple(found)
