"""Marks training steps that are known to repeat identically, so that a prediction need not run all of them.

A regular step does the same every time once the optimizer has its state: it has no schedule, no counter and no data that differ.
And it does the same on every rank, but for what its part of the mesh makes different: no rank has a task of its own. The steps that
memfit makes for models by name are regular; a user's function may not be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Step = TypeVar("Step", bound=Callable[[], Any])

_MARK = "_memfit_is_regular"


def regular(step: Step) -> Step:
    """Says of a training step that it is regular."""
    setattr(step, _MARK, True)
    return step


def is_regular(step: Callable[[], Any]) -> bool:
    return getattr(step, _MARK, False) is True
