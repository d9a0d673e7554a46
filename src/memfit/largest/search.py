"""The largest number that fits, with as few predictions as can be.

::

    1, and one further ──> a line through what is known ──> the number at which it meets the room, and the one after it
                                 ^                                              │
                                 └────────── until N fits and N + 1 does not ───┘

Memory need not grow with every number: what is found fits, the next one does not, and ``tried`` says which others were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

_FAR = 8
"""The second number that is tried, where nothing bounds it: far enough from 1 for a line through both."""

_FARTHEST = 16
"""How many times the largest that fits may be tried next: a script makes batches of that size on the host."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One number, and what it needs."""

    number: int
    needed: int = 0
    """Bytes that the allocator must be able to get; 0 where it could not be predicted."""
    fits: bool = False
    step_seconds: float = 0.0
    error: str = ""
    """Why it could not be predicted; empty where it could."""


Ask = Callable[[Sequence[int]], Sequence[Attempt]]
"""Predicts numbers, side by side."""


def find_largest(ask: Ask, room: int, *, multiple: int = 1, ceiling: int | None = None, lanes: int = 1) -> list[Attempt]:
    """Asks for multiples of ``multiple`` until one fits and the next does not, or ``ceiling`` is reached; returns all attempts, in
    the order in which they were made. None fits where the first does not. What cannot be predicted counts as not fitting.

    ``room`` is what an attempt may need, for guesses alone: whether one fits, it says itself. No number above ``ceiling`` is asked
    for. ``lanes`` numbers are asked for at a time.
    """
    tried: dict[int, Attempt] = {}
    end = None if ceiling is None else ceiling // multiple + 1
    asking = [1] if lanes == 1 else sorted({1, min(_FAR, max(1, (end or 2 * _FAR) // 2))})
    widths: list[int] = []
    while asking:
        for found in ask([count * multiple for count in asking]):
            tried[found.number // multiple] = found
        low = max((count for count, found in tried.items() if found.fits), default=0)
        high = min((count for count, found in tried.items() if not found.fits and count > low), default=end)
        if high is not None:
            widths.append(high - low)
        asking = _next(tried, low, high, room, lanes, is_slow=len(widths) > 2 and widths[-1] > widths[-3] // 2)
    return list(tried.values())


def most_in_all(tried: Collection[Attempt], ceiling: int | None, multiple: int) -> int | None:
    """How many attempts there will be, as far as halving what is left says it; ``None`` while nothing bounds it from above."""
    low = max((each.number for each in tried if each.fits), default=0)
    high = min((each.number for each in tried if not each.fits and each.number > low), default=ceiling and ceiling + multiple)
    return None if high is None else len(tried) + max(0, (high - low) // multiple - 1).bit_length()


def _next(tried: dict[int, Attempt], low: int, high: int | None, room: int, lanes: int, *, is_slow: bool) -> list[int]:
    """The numbers to ask for; none if it is done. ``is_slow`` asks for the middle, whatever the line says."""
    if high is not None and high <= low + 1:
        return []
    guess = _guess(tried, low, high, room)
    if high is not None and is_slow:
        guess = (low + high) // 2
    wanted = (guess, guess + 1) if lanes > 1 else (guess,)
    return [count for count in wanted if high is None or count < high]


def _guess(tried: dict[int, Attempt], low: int, high: int | None, room: int) -> int:
    """The largest number that fits by a line through the two nearest attempts."""
    known = {count: found.needed for count, found in tried.items() if found.needed}
    at_most = _FARTHEST * max(low, 1) if high is None else high - 1
    if high in known and low in known:
        first, second = low, high
    else:
        below = sorted(count for count in known if count <= low)
        if len(below) < 2:
            return min(max(low + 1, _FAR * low), at_most)
        first, second = below[-2:]
    slope = (known[second] - known[first]) / (second - first)
    meets = int(first + (room - known[first]) / slope) if slope > 0 else at_most
    return min(max(meets, low + 1), at_most)
