"""The prediction that runs in this process: one handle for code that can be called from anywhere.

Streams, launched kernels and stand-ins for libraries outlive the world in which they were made, because a script's modules hold
them. They ask for the world when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from memfit.errors import PredictionError
from memfit.hardware import Gpu
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.timing.host import HostPace
from memfit.timing.operators.calls import Cost
from memfit.timing.rates import Rates
from memfit.timing.timeline import Timeline
from memfit.torch_compat.patches import Patches

if TYPE_CHECKING:
    from memfit.phantom.distributed.pipelines import Neighbours


class WorldClock(Protocol):
    """The clock as kernels that are not operators see it."""

    chip: Gpu
    rates: Rates
    pace: HostPace
    timeline: Timeline

    def launch(self, cost: Cost, host_seconds: float) -> None: ...

    def launch_as(self, func: Any, args: Any, result: Any) -> None: ...

    def wait_for_ranks(self, seconds: float) -> None: ...


@dataclass
class CurrentWorld:
    """One prediction, while it runs."""

    target: Target
    assumptions: Assumptions
    clock: WorldClock
    count: Callable[[str, str, int], int] = lambda kind, what, largest: largest
    """The assumed count of a data-dependent result. Takes the kind of value, a description and the largest possible count."""
    neighbours: Neighbours | None = None
    """What stages of a pipeline tell each other; ``None`` outside a rank's prediction."""
    tuned: set[Any] = field(default_factory=set)
    """Tuned kernels, each with the arguments that it was tuned for."""
    mode_slowness: float = 1.0
    """Factor on the measured host time of a dispatch mode in Python."""
    _said: set[str] = field(default_factory=set)

    def say(self, sentence: str) -> None:
        """Adds an assumption, once however often a kernel is launched."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.assumptions.add(sentence)

    def spend_on_mode(self, seconds: float) -> None:
        """Advances the host's time by the cost of a dispatch mode in Python."""
        self.clock.timeline.spend(self.mode_slowness * seconds)


class NoPredictionError(PredictionError, RuntimeError):
    """A stand-in was called after its prediction had ended."""

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
    """The running prediction, ``None`` if there is none."""
    return _world


def current() -> CurrentWorld:
    """The running prediction; raises ``NoPredictionError`` if there is none."""
    if _world is None:
        raise NoPredictionError()
    return _world
