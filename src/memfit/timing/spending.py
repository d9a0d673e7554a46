"""How code that runs in a prediction tells the clock what its Python costs the host: nothing else can see it.

On a real GPU nobody listens, and the time passes by itself.
"""

from __future__ import annotations

from collections.abc import Callable

spend: Callable[[float], None] | None = None
"""Takes seconds that the host is busy; ``None`` outside a prediction."""


def listen(listener: Callable[[float], None] | None) -> None:
    """From now on, a clock is told; with ``None`` it is not any more."""
    global spend
    spend = listener
