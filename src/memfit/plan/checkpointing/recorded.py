"""What one forward of a unit did, operator by operator: all that the choice of what to keep needs to know. It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call of an operator that made something new, or changed something."""

    operator: str
    """As torch writes it: ``aten.mm.default``."""
    call: int
    """Which of the operator's calls in this forward, from 0."""
    seconds: float
    """On the GPU."""
    size_bytes: int
    """Of what it made; 0 where it only changed something."""
    is_run_again: bool = True
    """Torch stops computing again at the last tensor that backward needs; this operator runs before that."""
    is_random: bool = False
    is_product: bool = False
    """A product, a convolution or attention: what a compiler does not fuse into its neighbours."""
    base: int | None = None
    """For one that changes what another call of this forward made: the number of that call."""
    must_keep: bool = False
    """Running it twice would change something that outlives the unit: the running statistics of a batch norm."""
    can_keep: bool = True
    """What it made is the same in backward as in forward."""


@dataclass(frozen=True, kw_only=True)
class RecordedUnit:
    """One module, as it was in the first step."""

    name: str
    kind: str
    """Its class."""
    calls: tuple[RecordedCall, ...]
    saved_bytes: int
    """What autograd keeps of what this forward made, where nothing is computed again."""
    num_forwards: int = 1
    """How often it runs in a step."""
    is_compiled: bool = False
    refusal: str = ""
    """Why it cannot be computed again; empty where it can."""
    order: int = 0
    """Its place among the units that ran, in the order of forward."""

    @property
    def seconds(self) -> float:
        """Of one forward."""
        return sum(call.seconds for call in self.calls)

    @property
    def signature(self) -> tuple[object, ...]:
        """Units with equal signatures are equal for every decision."""
        return (self.kind, self.calls, self.saved_bytes, self.num_forwards, self.is_compiled, self.refusal)
