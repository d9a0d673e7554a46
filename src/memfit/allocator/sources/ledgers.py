"""A ledger's blocks on one device, as requests."""

from __future__ import annotations

import numpy as np

from memfit.allocator.requests import RequestKind, Requests
from memfit.errors import ConfigError
from memfit.ledger import Ledger
from memfit.ledger.schema import Array


def requests_from_ledger(ledger: Ledger, device: str | None = None) -> Requests:
    """What the run asked of ``device``, by default the GPU with the most events.

    Resizing a block to another size allocates the new memory before the old is freed, as torch does to copy the contents.
    """
    ledger.check()
    number = _choose_device(ledger, device)
    event = ledger.memory_events[ledger.blocks.device[ledger.events.subject[ledger.memory_events]] == number]
    size, before = ledger.events.size[event], _size_before(ledger, event)
    event, size, before = (column[size != before] for column in (event, size, before))
    allocates, frees = size > 0, before > 0
    num_requests = allocates.astype(np.int64) + frees
    alloc_row = (np.cumsum(num_requests) - num_requests)[allocates]
    free_row = (np.cumsum(num_requests) - 1)[frees]
    total = int(num_requests.sum())
    kind, block, asked, source_event = np.full(total, RequestKind.FREE), *(np.zeros(total, dtype=np.int64) for _ in range(3))
    kind[alloc_row] = RequestKind.ALLOC
    block[alloc_row] = np.arange(len(alloc_row))
    block[free_row] = _block_before(ledger.events.subject[event], allocates)[frees]
    asked[alloc_row] = size[allocates]
    source_event[alloc_row], source_event[free_row] = event[allocates], event[frees]
    _, stream = np.unique(ledger.blocks.stream[ledger.events.subject[source_event]], return_inverse=True)
    nothing = np.zeros(total, dtype=np.int64)
    return Requests(
        kind=kind,
        block=block,
        size=asked,
        stream=stream,
        pool=nothing,
        event=source_event,
        segment_address=nothing,
        segment_size=nothing,
        num_blocks=len(alloc_row),
        num_events=len(ledger.events),
        source="ledger",
        torch_version=ledger.info.versions.get("torch", ""),
        warnings=_warnings(ledger, number),
        ledger=ledger,
    )


def _choose_device(ledger: Ledger, device: str | None) -> int:
    names = [known.name for known in ledger.devices]
    if device is not None:
        if device not in names:
            raise ConfigError(f"the ledger has no device {device!r}; it has {', '.join(names) or 'none'}")
        return names.index(device)
    counts = np.bincount(ledger.blocks.device, minlength=max(len(names), 1))
    return max(range(len(counts)), key=lambda i: (i < len(names) and names[i].startswith("cuda"), counts[i]))


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
    order = np.argsort(block, kind="stable")
    previous = np.full(len(block), -1, dtype=np.int64)
    same = block[order[1:]] == block[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _warnings(ledger: Ledger, number: int) -> tuple[str, ...]:
    found = []
    if not ledger.info.complete:
        found.append(f"the ledger is incomplete: {ledger.info.problem}")
    others = [known.name for i, known in enumerate(ledger.devices) if i != number and known.name.startswith("cuda")]
    if others:
        found.append(f"counted on {ledger.devices[number].name} only; the ledger also has {', '.join(others)}")
    return tuple(found)
