"""The words that every view has for moments, steps and spans of time."""

from __future__ import annotations

import numpy as np

from memfit.analysis import INIT, Peak, running_at
from memfit.ledger import Ledger, Phase
from memfit.ledger.schema import Array
from memfit.views.escaping import printable

_DURATIONS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))


def name_moment(peak: Peak) -> str:
    """When a peak was: ``in step 1, in backward of layers.3``."""
    when = "during initialisation" if peak.step == INIT else f"in step {peak.step}"
    running = name_running(peak.phase, peak.module)
    return f"{when}, in {running}" if running else when


def name_running(phase: Phase | None, module: str) -> str:
    """What ran: ``backward of layers.3``; empty outside all phases."""
    if phase is None:
        return ""
    return f"{name_phase(phase)} of {printable(module)}" if module else name_phase(phase)


def name_phase(phase: Phase) -> str:
    return phase.name.lower().replace("_", " ").replace("fsdp", "FSDP")


def name_events(ledger: Ledger, events: Array) -> list[str]:
    """When each event was, and what ran: ``step 1, backward of layers.3``."""
    steps = np.searchsorted(ledger.step_starts, events, side="right") - 1
    pairs, which = np.unique(np.stack((steps, running_at(ledger, events))), axis=1, return_inverse=True)
    names = []
    for step, scope in pairs.T.tolist():
        when = "initialisation" if step == INIT else f"step {step}"
        phase = Phase(ledger.scopes.phase[scope]) if scope >= 0 else None
        running = name_running(phase, ledger.module_path(int(ledger.scopes.module[scope])) if scope >= 0 else "")
        names.append(f"{when}, {running}" if running else when)
    return [names[i] for i in which.ravel().tolist()]


def name_step(step: int) -> str:
    return "init" if step == INIT else str(step)


def count(number: int, noun: str) -> str:
    """``1 step``, ``1,200 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_duration(time_ns: int) -> str:
    """A span of time in the largest unit that keeps it at or above one: ``1.25 ms``."""
    for unit, size in _DURATIONS:
        if time_ns >= size:
            return f"{time_ns / size:,.2f} {unit}"
    return f"{time_ns} ns"
