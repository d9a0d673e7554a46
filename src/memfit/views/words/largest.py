"""The largest number that fits, in words."""

from __future__ import annotations

from collections.abc import Iterator

from memfit.job.cell import SAFETY_MARGIN
from memfit.largest.result import LargestFit
from memfit.largest.search import Attempt
from memfit.units import format_bytes
from memfit.views.words.recipe import recipe_line
from memfit.views.words.timing import format_seconds

NAMES = {"batch": "batch", "seq": "sequence"}


def title(found: LargestFit) -> str:
    return recipe_line(found.asked)


def answer(found: LargestFit) -> Iterator[str]:
    """What fits, what does not, and how sure that is."""
    name, best, above = NAMES.get(found.axis, found.axis), found.best, found.first_that_does_not_fit
    if best is None:
        smallest = min(found.tried, key=lambda each: each.number)
        yield f"Nothing fits: a {name} of {smallest.number} needs {_needs(smallest, found)}."
        return
    size = f"{best.number:,} tokens" if found.axis == "seq" else f"{best.number:,}"
    largest = "longest" if found.axis == "seq" else "largest"
    time = f", {format_seconds(best.step_seconds)} a step" if best.step_seconds else ""
    yield f"The {largest} {name} that fits: {size}. It needs {_needs(best, found)}{time}."
    if above is None and found.ceiling is not None:
        reason = "cannot fit, by what weights and activations take at least" if found.is_bounded else "is beyond its context"
        yield f"{best.number + found.multiple:,} {reason}."
    elif above is not None:
        yield f"{above.number:,} {f'could not be predicted: {above.error}' if above.error else f'needs {_needs(above, found)}'}."
    if found.capacity - best.needed < SAFETY_MARGIN * found.capacity:
        yield (
            f"That leaves less than {SAFETY_MARGIN:.0%} of the memory, and a prediction may be wrong by as much: "
            f"--margin {SAFETY_MARGIN} finds one that leaves it."
        )


def attempts(found: LargestFit) -> str:
    """Which numbers were looked at: memory need not grow with every one."""
    numbers = ", ".join(f"{each.number:,} {_mark(each)}" for each in sorted(found.tried, key=lambda each: each.number))
    multiples = f" Only multiples of {found.multiple} were looked at." if found.multiple > 1 else ""
    return f"Predicted: {numbers}.{multiples}"


def _mark(attempt: Attempt) -> str:
    return "fits" if attempt.fits else "failed" if attempt.error else "does not"


def _needs(attempt: Attempt, found: LargestFit) -> str:
    return f"{format_bytes(attempt.needed)} of {format_bytes(found.room)}"
