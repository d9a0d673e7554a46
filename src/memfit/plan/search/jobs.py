"""What is predicted of a candidate, so that it costs little and says enough.

A batch that is computed in many parts is at first predicted with two of them: from the second on, gradients of those before are
there, and every part allocates the same and takes as long (``tests/plan/search/test_shortened.py``). What the allocator's cache
makes of it differs a little with their number, so that the answer is predicted with all of them, up to eight. Of a pipeline two
microbatches for every rank are predicted at first, of the first and the last rank; its answer with all microbatches and ranks.
"""

from __future__ import annotations

from typing import Any

from memfit.job import Configuration

_AT_FIRST = 2
"""Training steps: the second is the first in which the optimizer has all of its state."""

_MANY = 4
"""From this many microbatches on, a step repeats itself enough: two steps say as much as three."""

_IN_THE_END = 8
"""Number of microbatches that are predicted for a batch without a pipeline."""


def job_of(asked: Configuration, *, is_final: bool) -> dict[str, Any]:
    """For the workers and the cache. At first, two steps, and of a pipeline the first and the last rank."""
    if not is_final or (asked.is_model and asked.recipe.microbatches >= _MANY):
        asked = asked.with_options(steps=min(_AT_FIRST, asked.options.steps))
    if not asked.is_model:
        return asked.to_json()
    if asked.recipe.pp > 1 and not is_final:
        asked = asked.with_options(ranks=(0, asked.world_size - 1))
    shortened = shortened_of(asked, is_final=is_final)
    return asked.to_json() | ({"shortened": shortened} if shortened else {})


def shortened_of(asked: Configuration, *, is_final: bool) -> dict[str, int]:
    """Fewer microbatches of the same size; empty where there are few, or all of them count."""
    recipe = asked.recipe
    if is_final and recipe.pp > 1:
        return {}
    wanted = _IN_THE_END if is_final else 2 * recipe.pp
    if recipe.microbatches <= wanted:
        return {}
    return {"microbatches": wanted, "batch": recipe.batch // recipe.microbatches * wanted}


def what_was_shortened(asked: Configuration, *, is_final: bool) -> str:
    """For the assumptions of an answer; empty where nothing was."""
    shortened = shortened_of(asked, is_final=is_final) if asked.is_model else {}
    if not shortened:
        return ""
    few, all_of_them = shortened["microbatches"], asked.recipe.microbatches
    return f"{few} of {all_of_them} microbatches were predicted: the others are taken to need the same memory and time"
