"""Waiting for what must come, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS_AFTER = 240
"""Seconds that no test waits unless something hangs, also on a machine that is busy with other things."""


def wait_until(happened: Callable[[], bool]) -> None:
    """Returns when it has happened; fails only where it never would."""
    until = time.monotonic() + HANGS_AFTER
    while not happened():
        assert time.monotonic() < until, f"waited {HANGS_AFTER} s in vain"
        time.sleep(0.01)
