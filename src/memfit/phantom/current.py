"""The prediction that runs in this process: one handle for code that is called from anywhere.

Streams, kernels that a script launches and stand-ins for libraries outlive the world in which they were made: a script's modules
hold on to them. What they need of the world is asked for when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from memfit.errors import PredictionError
from memfit.hardware import Gpu
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.timing.host import HostPace
from memfit.timing.operators.calls import Cost
from memfit.timing.rates import Rates
from memfit.timing.timeline import Timeline
from memfit.torch_compat.patches import Patches


class WorldClock(Protocol):
    """What kernels that are no operators advance."""

    chip: Gpu
    rates: Rates
    pace: HostPace
    timeline: Timeline

    def launch(self, cost: Cost, host_seconds: float) -> None: ...


@dataclass
class CurrentWorld:
    """One prediction, while it runs."""

    target: Target
    assumptions: Assumptions
    clock: WorldClock
    count: Callable[[str, str, int], int] = lambda kind, what, largest: largest
    """How many of at most so many elements there are, where only data could tell: by the kind of value, and in words."""
    tuned: set[Any] = field(default_factory=set)
    """Kernels that have been tuned, each with what for."""
    mode_slowness: float = 1.0
    """How many times as much as was measured a dispatch mode in Python costs the host."""
    _said: set[str] = field(default_factory=set)

    def say(self, sentence: str) -> None:
        """Adds to the assumptions, once however often a kernel is launched."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.assumptions.add(sentence)

    def spend_on_mode(self, seconds: float) -> None:
        """The host is busy with a dispatch mode in Python, which no operator shows."""
        self.clock.timeline.spend(self.mode_slowness * seconds)


class NoPredictionError(PredictionError, RuntimeError):
    """A stand-in is called when the prediction in which it was imported is over."""

    def __init__(self) -> None:
        super().__init__(
            "this library is not installed: what a prediction imported in its place works inside a prediction only. Install it, or "
            "start a new process"
        )


_world: CurrentWorld | None = None


def begin(patches: Patches, world: CurrentWorld) -> None:
    """``world`` is the current one until the patches are undone."""
    global _world
    _world = world
    patches.finally_call(_end)


def _end() -> None:
    global _world
    _world = None


def find_world() -> CurrentWorld | None:
    """The prediction that runs; ``None`` outside all."""
    return _world


def current() -> CurrentWorld:
    """The prediction that runs; raises ``NoPredictionError`` outside all."""
    if _world is None:
        raise NoPredictionError()
    return _world
