"""The lifetimes of blocks: what made them, what they are, when they were allocated and freed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.analysis.owners import find_names, find_owners
from memfit.ledger import Category, Ledger
from memfit.ledger.schema import Array


@dataclass(frozen=True, kw_only=True)
class BlockLife:
    """One block, from its allocation to its end."""

    block: int
    op: str
    module: str
    """The path of the module that owns it; empty if none does."""
    name: str
    """Its name, ``layers.0.weight``; for a gradient or optimizer state that of the parameter. Empty without one."""
    category: Category
    device: str
    size_bytes: int
    birth_event: int
    birth_ns: int
    death_event: int | None
    """``None`` if it outlives the ledger."""
    death_ns: int | None
    lifetime_ns: int
    """Its duration, until it was freed or the ledger ends."""


def trace_lifetimes(ledger: Ledger) -> list[BlockLife]:
    """All blocks by number, each with the most bytes it ever held."""
    return describe_blocks(ledger, np.arange(len(ledger.blocks)), ledger.block_peak_bytes)


def largest_blocks_at(ledger: Ledger, event: int, device: int, count: int) -> list[BlockLife]:
    """The largest blocks on a device right after an event, with their sizes then, largest first."""
    held = ledger.block_bytes_at(event)
    blocks = np.flatnonzero((held > 0) & (ledger.blocks.device == device))
    largest = blocks[np.argsort(-held[blocks], kind="stable")][:count]
    return describe_blocks(ledger, largest, held[largest])


def describe_blocks(ledger: Ledger, blocks: Array, sizes: Array) -> list[BlockLife]:
    """The lives of ``blocks``, as blocks of ``sizes``."""
    num_events = len(ledger.events)
    time_ns = np.append(ledger.events.time_ns, ledger.events.time_ns.max(initial=0))
    births, deaths = ledger.birth[blocks], ledger.death[blocks]
    paths = [ledger.module_path(module) for module in range(len(ledger.modules))] + [""]
    categories, devices = list(Category), [device.name for device in ledger.devices]
    columns = (
        blocks,
        ledger.blocks.op[blocks],
        find_owners(ledger)[blocks],
        ledger.categories[blocks],
        ledger.blocks.device[blocks],
        sizes,
        births,
        time_ns[births],
        deaths,
        time_ns[deaths],
    )
    return [
        BlockLife(
            block=block,
            op=ledger.strings[op],
            module=paths[module],
            name=name,
            category=categories[category],
            device=devices[device],
            size_bytes=size,
            birth_event=birth,
            birth_ns=birth_ns,
            death_event=death if death < num_events else None,
            death_ns=death_ns if death < num_events else None,
            lifetime_ns=death_ns - birth_ns,
        )
        for name, block, op, module, category, device, size, birth, birth_ns, death, death_ns in zip(
            find_names(ledger, blocks), *(column.tolist() for column in columns), strict=True
        )
    ]
