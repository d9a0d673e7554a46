"""An answer as the page shows it: sentences and figures as text, bars as shares of a whole. The page adds nothing up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from memfit.hardware import Gpu, find_gpu, gpus
from memfit.ledger import Category
from memfit.serve.questions import Question
from memfit.units import format_bytes
from memfit.views.words.recipe import recipe_line
from memfit.views.words.timing import format_seconds

GOOD: Final = "good"
BAD: Final = "bad"
OPEN: Final = "open"
"""Known to fit, known not to, and not known."""
_HOUR: Final = 3600
_MILLION: Final = 1_000_000


def head(question: Question) -> dict[str, Any]:
    """What every answer begins with: what it is about, and how to ask the same elsewhere."""
    return {
        "key": question.key,
        "recipe": recipe_line(question.asked),
        "command": question.command,
        "python": question.python,
    }


def bars(smallest_fit: int, communicators: tuple[int, int], *, is_bound: bool, wanted: str) -> list[dict[str, Any]]:
    """One for every kind of GPU and for the wanted one, by the memory it has: what must be free on it, as a share of that."""
    listed = {gpu.name: gpu for gpu in gpus()} | {wanted: find_gpu(wanted)}
    ordered = sorted(listed.values(), key=lambda gpu: gpu.usable_bytes)
    return [_bar(gpu, smallest_fit, communicators, is_bound=is_bound, wanted=wanted) for gpu in ordered]


def _bar(gpu: Gpu, smallest_fit: int, communicators: tuple[int, int], *, is_bound: bool, wanted: str) -> dict[str, Any]:
    beside = gpu.context_bytes + gpu.communicators_bytes(*communicators)
    needed, fits = smallest_fit + beside, smallest_fit + beside <= gpu.usable_bytes
    least = "at least " if is_bound else ""
    spare = gpu.usable_bytes - needed
    words = f"{format_bytes(abs(spare))} {'left' if spare >= 0 else 'short'}"
    return {
        "name": gpu.name,
        "isWanted": gpu.name == wanted,
        "share": round(min(1.0, needed / gpu.usable_bytes), 4),
        "text": f"{least}{format_bytes(needed)} of {format_bytes(gpu.usable_bytes)}",
        "verdict": (("may fit" if is_bound else f"fits, {words}") if fits else (f"cannot fit, {words}" if is_bound else words)),
        "tone": BAD if not fits else OPEN if is_bound else GOOD,
    }


def categories(breakdown: Mapping[str, int]) -> list[dict[str, Any]]:
    """What the peak is made of, by the label of a ``Category``."""
    total = sum(breakdown.values()) or 1
    found = []
    for label, size in breakdown.items():
        category = Category.from_label(label)
        key = category.name.lower() if category is not None else "other"
        found.append({"label": label, "key": key, "share": round(size / total, 4), "text": format_bytes(size)})
    return found


def cost_line(question: Question, tokens_per_second: float) -> str:
    """What a million tokens cost; empty where no price is given or no tokens are known."""
    if not question.price or not tokens_per_second:
        return ""
    cost = question.price / _HOUR / tokens_per_second * _MILLION
    return f"{cost:,.3g} for a million tokens, at {question.price:g} an hour for each GPU"


def step_line(seconds: float, tokens_per_second: float, *, is_bound: bool = False) -> str:
    if not seconds:
        return ""
    facts = [f"A step takes {'at least ' if is_bound else ''}{format_seconds(seconds)}"]
    if tokens_per_second:
        facts.append(f"{'at most ' if is_bound else ''}{tokens_per_second:,.0f} tokens a second on each GPU")
    return ", ".join(facts) + "."


def module_rows(rows: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Modules by what they hold at the peak."""
    largest = max((size for _, size in rows), default=0) or 1
    for path, size in rows:
        yield {"path": path, "share": round(size / largest, 4), "text": format_bytes(size)}


def tokens_of_a_gpu(question: Question) -> float:
    """Tokens in a step, for each GPU; 0 where a recipe does not say it."""
    if question.configuration is None or not question.configuration.is_model:
        return 0.0
    recipe = question.configuration.recipe
    return recipe.batch * recipe.seq / (recipe.tp * recipe.pp * recipe.cp)


def chosen_gpu(question: Question) -> Gpu:
    return find_gpu(question.options.gpu)
