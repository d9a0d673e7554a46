"""The prediction in which a library is used: what stand-ins and replaced kernels must know of it.

Stand-ins are modules, and outlive the world in which they were imported: a script's own modules hold on to them. So what they
need of the world is asked for when they are called, and outside every world they refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memfit.errors import PredictionError
from memfit.phantom.target import Target
from memfit.phantom.tensors.notes import CHOICES, CONSTANT, HOST_DATA, SHARE
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.fake_tensors import FakeTensor
from memfit.torch_compat.patches import Patches


@dataclass
class Context:
    """One prediction."""

    target: Target
    assumptions: Assumptions
    tuned: set[Any] = field(default_factory=set)
    """Kernels that have been tuned, each with what for."""
    _said: set[str] = field(default_factory=set)

    def say(self, sentence: str) -> None:
        """Adds to the assumptions, once however often a kernel is launched."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.assumptions.add(sentence)


class NoPredictionError(PredictionError, RuntimeError):
    """A stand-in is called when the prediction in which it was imported is over."""

    def __init__(self) -> None:
        super().__init__(
            "this library is not installed: what a prediction imported in its place works inside a prediction only. Install it, or "
            "start a new process"
        )


_current: Context | None = None


def begin(patches: Patches, target: Target, assumptions: Assumptions) -> Context:
    """Everything that is called from now on, until the patches are undone, belongs to this prediction."""
    global _current
    _current = Context(target, assumptions)
    patches.finally_call(_end)
    return _current


def _end() -> None:
    global _current
    _current = None


def is_predicting() -> bool:
    return _current is not None


def current() -> Context:
    """The prediction that runs."""
    if _current is None:
        raise NoPredictionError()
    return _current


def forget_data(*tensors: Any) -> None:
    """A kernel may have written to these: what was known of their data is known no longer."""
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            for known in (tensor, tensor._base):
                for name in (CONSTANT, HOST_DATA, CHOICES, SHARE) if known is not None else ():
                    known.__dict__.pop(name, None)
