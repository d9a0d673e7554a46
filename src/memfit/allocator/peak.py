"""What the memory in use was for."""

from __future__ import annotations

import numpy as np

from memfit.ledger import Category, Ledger


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
