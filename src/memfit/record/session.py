"""The protocol of a recording, which ``memfit.track`` and ``memfit.predict`` share.

::

    session = RecordingSession(builder, observers)
    session.attach()       hooks are in place, the recorder sees this thread's operators
    ...                    the run
    session.catch_up()     a ledger read now is up to date
    session.close()        the recorder is gone, no scope is open

A session belongs to the process and to the thread that attached it. Other threads' work is not part of it, and several threads can
record at once. A forked child has a copy of everything: there the session is given up before any other code runs, and its file is
left to the parent.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memfit.ledger import LedgerBuilder
from memfit.record import run_hooks
from memfit.record.operators import OperatorObserver
from memfit.record.recorder import Recorder
from memfit.torch_compat.autograd import calibrate
from memfit.torch_compat.dispatch import enter_mode, leave_mode, modes_of_this_thread

FLUSH_SECONDS = 0.5
"""How often a journal is brought up to date: what is on disk is at most a second old."""


class RecordingSession:
    """A recorder, from its attachment to its end. It can be attached again, and goes on with the same ledger."""

    def __init__(self, builder: LedgerBuilder, observers: Sequence[OperatorObserver] = ()) -> None:
        self.builder = builder
        self.recorder = Recorder(builder, observers)
        self.is_given_up = False
        """In a forked child: the recording is the parent's."""
        self._flusher: _Flusher | None = None
        _sessions.add(self)

    def leave_steps_to_caller(self) -> None:
        """Steps begin where ``mark_step`` is called, and nowhere else."""
        self.recorder.marks_steps = False

    def mark_step(self) -> None:
        """A training step begins here."""
        self.recorder.mark_step()

    def attach(self) -> None:
        calibrate()
        run_hooks.attach(self.recorder)
        enter_mode(self.recorder)
        if self.builder.has_journal:
            self._flusher = _Flusher(self.recorder)

    def catch_up(self) -> None:
        self.recorder.catch_up()

    def close(self) -> None:
        """Undoes everything that ``attach`` did, whatever has happened since."""
        if self._flusher is not None:
            self._flusher.stop()
            self._flusher = None
        self._leave_mode()
        run_hooks.detach(self.recorder)
        self.recorder.catch_up()
        self.recorder.close()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything inside is recorded."""
        self.attach()
        try:
            yield
        finally:
            self.close()

    def _leave_mode(self) -> None:
        if self.recorder in modes_of_this_thread():
            leave_mode(self.recorder)
        else:
            self.recorder.fail(RuntimeError("the recording was left in another thread than it was entered in"))

    def give_up(self) -> None:
        """The child of a fork neither records nor writes."""
        self.is_given_up = True
        self.recorder.give_up()
        self.builder.give_up_journal()
        if self.recorder in modes_of_this_thread():
            leave_mode(self.recorder)


class _Flusher:
    """A thread that writes to the journal what has come since it last looked."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memfit journal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(FLUSH_SECONDS) and not self._recorder.failed:
            try:
                self._recorder.builder.flush()
            except Exception as error:
                self._recorder.fail(error)


_sessions: weakref.WeakSet[RecordingSession] = weakref.WeakSet()


def _give_up_all() -> None:
    """A child of a fork begins."""
    for session in list(_sessions):
        session.give_up()
    run_hooks.detach_all()


if hasattr(os, "register_at_fork"):  # elsewhere there are no forks
    os.register_at_fork(after_in_child=_give_up_all)
