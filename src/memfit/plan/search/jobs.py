"""What is predicted of a candidate, so that it costs little and says enough.

A batch that is computed in many parts is at first predicted with two of them: from the second on, gradients of those before are
there, and every part allocates the same and takes as long (``tests/plan/search/test_shortened.py``). What the allocator's cache
makes of it differs a little with their number, so that the answer is predicted with all of them, up to eight. Of a pipeline two
microbatches for every rank are predicted at first, of the first and the last rank; its answer with all microbatches and ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memfit.compare.cell import Inputs

_AT_FIRST = 2
"""Training steps: the second is the first in which the optimizer has all of its state."""

_MANY = 4
"""With so many microbatches, a step repeats itself enough: two steps say as much as three."""

_IN_THE_END = 8
"""So many microbatches of a batch without a pipeline are predicted for an answer."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all predictions of a search have in common."""

    torch_version: str = ""
    alloc_conf: str = ""
    interconnect: str = ""
    steps: int = 3
    """Of the answer."""


def job_of(inputs: Inputs, settings: Settings, *, is_final: bool) -> dict[str, Any]:
    """For ``memfit.compare``'s workers and its cache. At first, two steps, and of a pipeline the first and the last rank."""
    steps = settings.steps
    if not is_final or inputs.get("microbatches", 0) >= _MANY:
        steps = min(_AT_FIRST, steps)
    job: dict[str, Any] = {"inputs": inputs, "steps": steps}
    job |= {"torch_version": settings.torch_version, "alloc_conf": settings.alloc_conf}
    if settings.interconnect:
        job["interconnect"] = settings.interconnect
    if "function" in inputs:
        return job
    shortened = shortened_of(inputs, is_final=is_final)
    if shortened:
        job["shortened"] = shortened
    if inputs["pp"] > 1 and not is_final:
        job["ranks"] = [0, inputs["world_size"] - 1]
    return job


def shortened_of(inputs: Inputs, *, is_final: bool) -> dict[str, int]:
    """Fewer microbatches of the same size; empty where there are few, or all of them count."""
    if is_final and inputs["pp"] > 1:
        return {}
    wanted = _IN_THE_END if is_final else 2 * inputs["pp"]
    if inputs["microbatches"] <= wanted:
        return {}
    return {"microbatches": wanted, "batch": inputs["batch"] // inputs["microbatches"] * wanted}


def what_was_shortened(inputs: Inputs, *, is_final: bool) -> str:
    """For the assumptions of an answer; empty where nothing was."""
    shortened = shortened_of(inputs, is_final=is_final) if "function" not in inputs else {}
    if not shortened:
        return ""
    few, all_of_them = shortened["microbatches"], inputs["microbatches"]
    return f"{few} of {all_of_them} microbatches were predicted: the others are taken to need the same memory and time"
