"""What a ledger knows of the moment at which most was allocated."""

from __future__ import annotations

import numpy as np

from memfit.ledger import Category, Ledger, Phase


def describe_moment(ledger: Ledger, event: int) -> str:
    """In which step and phase an event fell: ``step 1, backward``."""
    step = int(np.searchsorted(ledger.step_starts, event, side="right")) - 1
    phase = int(ledger.block_phase[ledger.events.subject[event]])
    words = [f"step {step}" if step >= 0 else "before the first step"]
    if phase >= 0:
        words.append(Phase(phase).name.lower().replace("_", " ").replace("fsdp", "FSDP"))
    return ", ".join(words)


def largest_categories(ledger: Ledger, event: int) -> tuple[tuple[str, int], ...]:
    """What the memory in use after an event was for, on the device of that event, largest first."""
    memory = ledger.memory_events[ledger.memory_events <= event]
    subject = ledger.events.subject[memory]
    device = ledger.blocks.device[ledger.events.subject[event]]
    here = ledger.blocks.device[subject] == device
    held = np.bincount(subject[here], weights=ledger.deltas[memory[here]], minlength=len(ledger.blocks))
    totals = np.bincount(ledger.categories, weights=held, minlength=len(Category)).astype(np.int64)
    found = [(category.label, int(totals[category])) for category in Category if totals[category] > 0]
    return tuple(sorted(found, key=lambda item: -item[1]))
