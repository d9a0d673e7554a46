"""A thread of memfit's own in somebody else's program.

Python 3.12 and newer warn where a process with more than one thread forks. A program that has one thread, and perhaps makes errors
of warnings, is to notice nothing of ours: it is gone before a fork, and comes back after it. Python 3.13 counts threads when
ours is back, and warns all the same.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

_GONE_LOOKS: Final = 1000
"""How often to look whether the system's thread is gone, with 0.1 ms between two looks."""


class HelperThread:
    """Runs ``run(stopping)`` from ``start`` to ``stop``, but for the time between ``pause`` and ``resume``.

    ``run`` returns soon after ``stopping`` is set; ``wake`` ends what it waits for other than that. It may be run several times.
    """

    def __init__(self, name: str, run: Callable[[threading.Event], None], wake: Callable[[], None] = lambda: None) -> None:
        self._name, self._run, self._wake = name, run, wake
        self._lock = threading.Lock()
        self._num_pauses = 0
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stopping,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._end(thread)

    def pause(self) -> None:
        """Before a fork. Two threads may fork at a time."""
        with self._lock:
            self._num_pauses += 1
            if self._num_pauses == 1 and self._thread is not None:
                self._end(self._thread)

    def resume(self) -> None:
        """After a fork, in the parent."""
        with self._lock:
            if self._num_pauses == 0:
                return  # it was made meanwhile
            self._num_pauses -= 1
            if self._num_pauses == 0 and self._thread is not None:
                self.start()

    def _end(self, thread: threading.Thread) -> None:
        self._stopping.set()
        self._wake()
        thread.join()
        # Before Python 3.13, joining ends a moment before the system's thread does.
        for _ in range(_GONE_LOOKS):
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):
                return
            time.sleep(1e-4)
