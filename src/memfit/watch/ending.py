"""Signals that end a program: the ledger is closed first, and the program ends as it would have without memfit.

::

    SIGTERM ──> Python's handler ──> in the main thread, when Python code runs again: finish, then the signal's own action
           └──> a byte in a pipe ──> a thread: where the main thread is stuck in C for two seconds, abandon in its place

A signal for which the program has a handler of its own, in Python or in C (``faulthandler.register``), is left to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from memfit.record.helper_thread import HelperThread

SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU") if hasattr(signal, name)
)
"""What schedulers end programs with."""
_STUCK_AFTER: Final = 2.0
"""Seconds without Python code in the main thread, after which the thread acts; and for what it then writes."""


def at_deadly_signals(finish: Callable[[str], None], abandon: Callable[[str], None]) -> None:
    """Calls ``finish`` with the name of a signal that is about to end this program; ``abandon``, in another thread, if it is stuck.

    Handlers are set in the main thread alone, and are not there in forks.
    """
    if threading.current_thread() is threading.main_thread():
        _Ending(finish, abandon)


class _Ending:
    """The handlers, and the thread for a program that is stuck."""

    def __init__(self, finish: Callable[[str], None], abandon: Callable[[str], None]) -> None:
        self._finish, self._abandon = finish, abandon
        self._is_handled = threading.Event()
        self._forking = threading.local()
        self._thread: HelperThread | None = None
        self._signals = [number for number in SIGNALS if _has_default_action(number)]
        for number in self._signals:
            signal.signal(number, self._on_signal)
        if hasattr(os, "register_at_fork"):  # not on Windows, where no program is stuck either: it ends at once
            self._watch_for_a_stuck_program()
            # Blocked meanwhile: a signal that came to a child too early would be taken for one to this process.
            os.register_at_fork(before=self._block, after_in_parent=self._go_on, after_in_child=self._leave)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_handled.set()
        self._finish(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _watch_for_a_stuck_program(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if others != -1:  # the program's own event loop is told
            signal.set_wakeup_fd(others)
            os.close(reader)
            os.close(writer)
            return
        self._thread = HelperThread("memfit: signals", lambda stopping: self._wait(reader), lambda: _wake(writer))
        self._thread.start()

    def _wait(self, reader: int) -> None:
        while number := os.read(reader, 1)[0]:
            # A program that has set a handler of its own meanwhile is told all the same.
            if signal.getsignal(number) == self._on_signal and not self._is_handled.wait(_STUCK_AFTER):
                abandoning = threading.Thread(target=self._abandon, args=(signal.Signals(number).name,), daemon=True)
                abandoning.start()
                abandoning.join(_STUCK_AFTER)  # the disk may be what hangs
                _take_default_action(number)

    def _block(self) -> None:
        if self._thread is not None:
            self._thread.pause()
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _go_on(self) -> None:
        self._unblock()
        if self._thread is not None:
            self._thread.resume()

    def _leave(self) -> None:
        """In a forked child, which must not speak for its parent."""
        signal.set_wakeup_fd(-1)
        for number in self._signals:
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL)
        self._unblock()


def _wake(writer: int) -> None:
    """Ends the thread that reads: no signal has this number."""
    with suppress(BlockingIOError):  # it has enough to read
        os.write(writer, b"\0")


def _has_default_action(number: signal.Signals) -> bool:
    """True if a signal has no handler. Python knows only its own handlers; Linux lists all signals that have one."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return False
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return not int(caught, 16) >> (number - 1) & 1
    return True


def _take_default_action(number: int) -> None:
    """From any thread; Python's own ``signal.signal`` is for the main thread alone."""
    library: Any = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(number, None)
    os.kill(os.getpid(), number)
