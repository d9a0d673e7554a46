"""Memory that runs out while a prediction goes on.

Where the named GPU has no memory left, the phantom raises what CUDA raises, so that code which catches it goes on as it would. The
allocator is simulated request by request for that, from the moment on at which a share of the GPU is in use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch

from memfit.allocator import AllocatorSettings, OutOfMemory, RequestKind, requests_from_ledger
from memfit.allocator.live import LiveAllocator
from memfit.errors import RanOutError
from memfit.hardware import Gpu
from memfit.ledger import LedgerBuilder
from memfit.ledger.schema import Array, Blocks, EventKind, Events
from memfit.units import GIB, KIB, MIB

NEAR: Final = 4
"""The allocator is followed once a fourth of the GPU is in use: below that, no run fragments memory enough to run out."""


@dataclass(frozen=True)
class Refusal:
    """A request that the GPU could not serve."""

    num_events: int
    """Of the ledger, by then."""
    failure: OutOfMemory


class MemoryLimit:
    """Follows one device's requests, and raises ``torch.OutOfMemoryError`` for one that the GPU could not serve."""

    def __init__(
        self, builder: LedgerBuilder, device: str, gpu: Gpu, num_process_groups: int, settings: Callable[[], AllocatorSettings]
    ) -> None:
        """``settings`` gives the allocator's settings when they are needed: a script may set them before it uses the GPU."""
        self._builder, self._device, self._gpu = builder, device, gpu
        self._capacity = gpu.capacity(num_process_groups)
        self._settings = settings
        self._sizes: dict[int, int] = {}
        """The bytes of each block of the device that was not freed."""
        self._streams: dict[int, int] = {}
        self._in_use = 0
        self._live: LiveAllocator | None = None
        self._numbers: dict[int, int] = {}
        """The allocator's number for the memory of each block: a block that is resized gets a new one."""
        self._next_number = 0
        self.refusals: list[Refusal] = []

    def take(self, block: int, size: int, device: int, stream: int) -> None:
        """A new block takes ``size`` bytes of a device; only those of the limited one are followed."""
        if self._builder.devices[device].name == self._device:
            self._numbers[block] = self._allocate(size, stream) if size else -1
            self._sizes[block], self._streams[block] = size, stream

    def resize(self, block: int, size: int) -> None:
        """A block takes ``size`` bytes in place of those that it has, which go when the new ones are there."""
        held = self._sizes.get(block)
        if held is None:
            return
        number = self._allocate(size, self._streams[block]) if size else -1
        self._release(block, held)
        self._sizes[block], self._numbers[block] = size, number

    def move(self, block: int, stream: int) -> None:
        """What the block is resized to from now on comes from another stream."""
        if block in self._streams:
            self._streams[block] = stream

    def give_back(self, block: int, *, is_in_use: bool = False) -> None:
        """A block is freed; ``is_in_use``: another stream still uses its memory, until ``complete``."""
        size = self._sizes.pop(block, None)
        if size is not None:
            del self._streams[block]
            self._release(block, size, is_in_use=is_in_use)

    def serve(self, events: Events, blocks: Blocks, first_block: int) -> int | None:
        """Serve a stretch of events at once, whose new blocks are numbered from ``first_block``. Returns how many could be served:
        after fewer than all, ``refuse_again`` raises the error. Returns ``None``, and does nothing, where a block is resized or
        moved: serve such events one by one."""
        kind = events.kind
        if ((kind == EventKind.RESIZE) | (kind == EventKind.STREAM)).any():
            return None
        where = np.flatnonzero((kind == EventKind.ALLOC) | (kind == EventKind.FREE))
        is_born, about = kind[where] == EventKind.ALLOC, events.subject[where] - first_block
        is_ours = np.array([device.name == self._device for device in self._builder.devices], dtype=bool)[blocks.device]
        sizes = np.where(is_ours, events.size[where[is_born]], 0)
        is_inner = about >= 0
        held = np.empty(len(where), dtype=np.int64)
        held[is_inner] = sizes[about[is_inner]]
        held[~is_inner] = [self._sizes.get(block, 0) for block in (about[~is_inner] + first_block).tolist()]
        in_use = self._in_use + np.cumsum(np.where(is_born, held, -held))
        if self._live is None and in_use.max(initial=0) > self._capacity // NEAR:
            self._live = self._catch_up()
        num_events, num_served = len(events), len(where)
        if self._live is not None:
            numbers = about + self._next_number
            numbers[~is_inner] = [self._numbers.get(block, -1) for block in (about[~is_inner] + first_block).tolist()]
            streams = np.zeros(len(where), dtype=np.int64)
            streams[is_born] = blocks.stream
            asks = np.flatnonzero(held)
            kinds = np.where(is_born, RequestKind.ALLOC, RequestKind.FREE)
            count, failure = self._live.serve(*(column[asks] for column in (kinds, numbers, held, streams)))
            if failure is not None:
                num_served = int(asks[count])
                num_events = int(where[num_served])
                self.refusals.append(Refusal(self._builder.num_events, failure))
        self._note(about[:num_served] + first_block, is_born[:num_served], sizes, is_ours, blocks.stream, first_block)
        self._in_use = int(in_use[num_served - 1]) if num_served else self._in_use
        return num_events

    def _note(self, subject: Array, is_born: Array, sizes: Array, is_ours: Array, streams: Array, first_block: int) -> None:
        """Of a stretch that was served, the blocks that are gone and those that are left."""
        gone = subject[~is_born]
        for block in gone[gone < first_block].tolist():
            for known in (self._sizes, self._streams, self._numbers):
                known.pop(block, None)
        is_left = is_ours.copy()
        is_left[np.count_nonzero(is_born) :] = False
        is_left[gone[gone >= first_block] - first_block] = False
        left = np.flatnonzero(is_left)
        blocks = (left + first_block).tolist()
        numbers = np.where(sizes[left] > 0, left + self._next_number, -1)
        self._sizes |= zip(blocks, sizes[left].tolist(), strict=True)
        self._streams |= zip(blocks, streams[left].tolist(), strict=True)
        self._numbers |= zip(blocks, numbers.tolist(), strict=True)
        self._next_number += len(sizes)

    def _allocate(self, size: int, stream: int) -> int:
        if self._live is None and self._in_use + size > self._capacity // NEAR:
            self._live = self._catch_up()
        if self._live is not None:
            failure = self._live.allocate(self._next_number, size, stream)
            if failure is not None:
                raise self._refuse(failure)
        self._in_use += size
        self._next_number += 1
        return self._next_number - 1

    def _release(self, block: int, size: int, *, is_in_use: bool = False) -> None:
        self._in_use -= size
        if self._live is None or not size:
            self._numbers.pop(block, None)
        elif is_in_use:
            self._live.request_free(self._numbers[block])
        else:
            self._live.free(self._numbers.pop(block))

    def complete(self, block: int) -> None:
        if self._live is not None and (number := self._numbers.pop(block, None)) is not None:
            self._live.complete_free(number)

    def empty_cache(self) -> None:
        if self._live is not None:
            self._live.empty_cache()

    def refuse_again(self) -> None:
        """Raises the last refusal where the ledger is by now."""
        last = self.refusals.pop()
        raise self._refuse(last.failure)

    def _catch_up(self) -> LiveAllocator:
        """Serves all that was asked so far."""
        live = LiveAllocator(self._settings(), self._capacity, self._gpu.usable_bytes)
        ledger = self._builder.build()
        requests = requests_from_ledger(ledger, self._device)
        streams = np.array(requests.stream_ids or (0,), dtype=np.int64)[requests.stream]
        _, failure = live.serve(requests.kind, requests.block, requests.size, streams)
        if failure is not None:
            raise self._refuse(failure)
        self._next_number = requests.num_blocks
        gone = requests.block[(requests.kind == RequestKind.FREE) | (requests.kind == RequestKind.FREE_COMPLETED)]
        rows = np.flatnonzero((requests.kind == RequestKind.ALLOC) & ~np.isin(requests.block, gone))
        subjects = ledger.events.subject[requests.event[rows]]
        self._numbers |= zip(subjects.tolist(), requests.block[rows].tolist(), strict=True)
        return live

    def _refuse(self, failure: OutOfMemory) -> torch.OutOfMemoryError:
        number = next(number for number, known in enumerate(self._builder.devices) if known.name == self._device)
        self.refusals.append(Refusal(self._builder.num_events, failure))
        LedgerBuilder.empty_cache(self._builder, number)  # all cached memory was given back in vain
        return torch.OutOfMemoryError(_in_cudas_words(failure, self._gpu, self._device))


Outcome = TypeVar("Outcome")


def limited_first(predict: Callable[[bool], Outcome], tell: Callable[[RanOutError], None]) -> Outcome:
    """What ``predict(True)`` finds under the GPU's limit. If the run ends there, ``tell`` is told, and ``predict(False)`` finds out
    how much it would have needed."""
    try:
        return predict(True)
    except RanOutError as error:
        tell(error)
        return predict(False)


def _in_cudas_words(failure: OutOfMemory, gpu: Gpu, device: str) -> str:
    """The figures are where scripts that read the message look for them."""
    free = max(0, failure.capacity - failure.reserved)
    taken = gpu.usable_bytes - free
    return (
        f"CUDA out of memory. Tried to allocate {_amount(failure.asked)}. GPU {device.rpartition(':')[2]} has a total capacity of "
        f"{_amount(gpu.usable_bytes)} of which {_amount(free)} is free. Process {os.getpid()} has {_amount(taken)} memory in use. "
        f"Of the allocated memory {_amount(failure.allocated)} is allocated by PyTorch, and {_amount(failure.cached)} is reserved "
        "by PyTorch but unallocated. (memfit: no GPU was used; this is what the simulated one says.)"
    )


def _amount(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
