"""Moments of a run: the step, the phase and the module that an event fell in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memfit.ledger.columns import Columns
from memfit.ledger.schema import Array, EventKind, Phase

INIT: Final = -1
"""The step number for everything before the first step."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When something happened, and what ran."""

    step: int
    """The step it fell in, ``INIT`` before the first."""
    phase: Phase | None
    """What ran, ``None`` outside all phases."""
    module: str
    """The path of the module that ran, empty outside all modules."""

    @property
    def in_a_step(self) -> bool:
        """Did a step run? If not, it was before the first."""
        return self.step != INIT

    @property
    def running(self) -> str:
        """What ran, as people write it: ``backward of layers.3``; empty outside all phases."""
        if self.phase is None:
            return ""
        return f"{self.phase.label} of {self.module}" if self.module else self.phase.label

    @property
    def label(self) -> str:
        """The moment, as people write it: ``step 1, backward of layers.3``."""
        when = f"step {self.step}" if self.in_a_step else "before the first step"
        return f"{when}, {self.running}" if self.running else when

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "phase": None if self.phase is None else self.phase.name.lower(), "module": self.module}


def moments_at(ledger: Columns, events: Array) -> list[Moment]:
    """The moment of each event. Events of the same moment share one object."""
    steps = steps_at(ledger, events)
    pairs, which = np.unique(np.stack((steps, running_at(ledger, events))), axis=1, return_inverse=True)
    found = [_moment(ledger, step, scope) for step, scope in pairs.T.tolist()]
    return [found[i] for i in which.ravel().tolist()]


def _moment(ledger: Columns, step: int, scope: int) -> Moment:
    if scope < 0:
        return Moment(step=step, phase=None, module="")
    phase, module = Phase(ledger.scopes.phase[scope]), ledger.module_path(int(ledger.scopes.module[scope]))
    return Moment(step=step, phase=phase, module=module)


def steps_at(ledger: Columns, events: Array) -> Array:
    """Per event: the step it fell in, ``INIT`` before the first."""
    return np.append(ledger.step_numbers, INIT)[np.searchsorted(ledger.step_starts, events, side="right") - 1]


def running_at(ledger: Columns, events: Array) -> Array:
    """Per event: the innermost scope it fell in, -1 outside all: the scope last entered, or the one around the scope last left."""
    kind = ledger.events.kind
    marks = np.flatnonzero((kind == EventKind.ENTER) | (kind == EventKind.EXIT))
    scope = ledger.events.subject[marks]
    running = np.where(kind[marks] == EventKind.ENTER, scope, ledger.scopes.parent[scope])
    return np.append(running, -1)[np.searchsorted(marks, events, side="right") - 1]
