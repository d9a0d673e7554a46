"""Host memory of one process's tensors.

::

    tensors on the CPU           as many bytes as they have: data, offloaded states, state dicts gathered there
    pinned ones                  rounded up to a power of two, and kept for the next that is as large

Python, libraries and the workers of data loaders take memory as well, which is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from memfit.analysis.timeline import events_on
from memfit.ledger import Ledger, Moment
from memfit.ledger.schema import Array
from memfit.phantom.device.memory import is_pinned
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.sources.operators.handlers import OutputHandler

HOST = "cpu"


class PinnedBlocks:
    """Collects the numbers of pinned host blocks."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def handler(self, func: Any, write_outputs: OutputHandler | None, blocks: BlockWriter) -> OutputHandler | None:
        schema = getattr(func, "_schema", None)  # a higher-order operator has none
        if write_outputs is None or schema is None or not any(argument.name == "pin_memory" for argument in schema.arguments):
            return write_outputs

        def write_and_look(func: Any, args: Any, result: Any) -> None:
            write_outputs(func, args, result)
            if isinstance(result, torch.Tensor) and is_pinned(result):
                ref = blocks.table.find(result.untyped_storage())
                if ref is not None:
                    self.numbers.add(ref.block)

        return write_and_look


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Peak host memory of one process's tensors, in bytes."""

    peak: int
    pinned: int
    """Of the peak, what the pinned-memory allocator holds."""
    moment: Moment | None
    """When the peak was; ``None`` if there was never a tensor."""
    num_processes: int = 1
    """Processes of this node, each assumed to need the same."""
    limit: int | None = None
    """The node's memory, ``None`` if unknown."""

    @property
    def of_node(self) -> int:
        return self.peak * self.num_processes

    @property
    def fits(self) -> bool | None:
        """True if the tensors of all processes fit into the node's memory; ``None`` if its size is unknown."""
        return None if self.limit is None else self.of_node <= self.limit

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"moment": self.moment and self.moment.to_json(), "of_node": self.of_node, "fits": self.fits}


def host_memory(ledger: Ledger, pinned_blocks: Iterable[int], *, num_processes: int = 1, limit: int | None = None) -> HostMemory:
    """The peak over the run; ``pinned_blocks`` are numbers of blocks."""
    names = [device.name for device in ledger.devices]
    events = events_on(ledger, names.index(HOST)) if HOST in names else np.zeros(0, dtype=np.int64)
    if not len(events):
        return HostMemory(peak=0, pinned=0, moment=None, num_processes=num_processes, limit=limit)
    is_pinned = np.zeros(len(ledger.blocks), dtype=bool)
    is_pinned[list(pinned_blocks)] = True
    of_pinned = is_pinned[ledger.events.subject[events]]
    deltas = ledger.deltas[events]
    pageable = np.cumsum(np.where(of_pinned, 0, deltas))
    held = _held_by_the_pinned_allocator(np.where(of_pinned, deltas, 0))
    highest = int(np.argmax(pageable + held))
    return HostMemory(
        peak=int(pageable[highest] + held[highest]),
        pinned=int(held[highest]),
        moment=ledger.moment_at(int(events[highest])),
        num_processes=num_processes,
        limit=limit,
    )


def _held_by_the_pinned_allocator(deltas: Array) -> Array:
    """Per event: all that was ever in use at once of each size, a power of two: ``aten/src/ATen/core/CachingHostAllocator.h``."""
    sizes = np.abs(deltas)
    powers = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    held = np.zeros(len(deltas), dtype=np.int64)
    for power in np.unique(powers[sizes > 0]).tolist():
        in_use = np.cumsum(np.sign(deltas) * ((powers == power) & (sizes > 0)))
        held += np.maximum.accumulate(in_use) << power
    return held
