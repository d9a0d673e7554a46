"""What is predicted of a candidate, so that it costs little and says enough.

A batch that is computed in many parts is predicted with two of them: from the second on, gradients of the ones before are there,
and every part needs the same memory and the same time. A pipeline is predicted with two microbatches for every rank: then all of
them are under way that ever are, and the schedule says what the others add. ``tests/plan/search/test_shortened.py`` compares with
all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memfit.compare.cell import Inputs

_AT_FIRST, _IN_THE_END = 2, 3
"""Training steps: the second is the first in which the optimizer has all of its state."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all predictions of a search have in common."""

    torch_version: str = ""
    alloc_conf: str = ""
    interconnect: str = ""
    steps: int = _IN_THE_END
    """Of the answer."""


def job_of(inputs: Inputs, settings: Settings, *, is_final: bool) -> dict[str, Any]:
    """For ``memfit.compare``'s workers and its cache. At first, two steps, and of a pipeline the first and the last rank."""
    job: dict[str, Any] = {"inputs": inputs, "steps": settings.steps if is_final else min(_AT_FIRST, settings.steps)}
    job |= {"torch_version": settings.torch_version, "alloc_conf": settings.alloc_conf}
    if settings.interconnect:
        job["interconnect"] = settings.interconnect
    if "function" in inputs:
        return job
    shortened = shortened_of(inputs)
    if shortened:
        job["shortened"] = shortened
    if inputs["pp"] > 1 and not is_final:
        job["ranks"] = [0, inputs["world_size"] - 1]
    return job


def shortened_of(inputs: Inputs) -> dict[str, int]:
    """Fewer microbatches of the same size; empty where there are few."""
    wanted = 2 * inputs["pp"]
    if inputs["microbatches"] <= wanted:
        return {}
    return {"microbatches": wanted, "batch": inputs["batch"] // inputs["microbatches"] * wanted}


def what_was_shortened(inputs: Inputs) -> str:
    """For the assumptions of an answer; empty where nothing was."""
    shortened = shortened_of(inputs) if "function" not in inputs else {}
    if not shortened:
        return ""
    few, all_of_them = shortened["microbatches"], inputs["microbatches"]
    return f"{few} of {all_of_them} microbatches were predicted: the others need the same memory and time"
