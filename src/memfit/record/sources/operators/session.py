"""A recording of operators, which ``memfit.track`` and ``memfit.predict`` share.

It belongs to the thread that attached it and ignores other threads. Several threads can record at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from memfit.ledger import LedgerBuilder
from memfit.record import run_hooks
from memfit.record.helper_thread import HelperThread
from memfit.record.session import RecordingSession, mind_forks
from memfit.record.sources.operators.handlers import OperatorObserver
from memfit.record.sources.operators.recorder import Recorder
from memfit.torch_compat.autograd import calibrate
from memfit.torch_compat.dispatch import enter_mode, leave_mode, modes_of_this_thread

FLUSH_SECONDS = 0.5
"""Seconds between flushes of a journal: what is on disk is at most this old."""


class OperatorSession(RecordingSession):
    """A recorder from attachment to end. It can be attached again and continues the same ledger."""

    def __init__(self, builder: LedgerBuilder, observers: Sequence[OperatorObserver] = ()) -> None:
        self.recorder = Recorder(builder, observers)
        mind_forks(self)

    @property
    def builder(self) -> LedgerBuilder:
        return self.recorder.builder

    def leave_steps_to_caller(self) -> None:
        self.recorder.models.marks_steps = False

    def mark_step(self, number: int | None = None) -> None:
        self.recorder.mark_step(number)

    def attach(self) -> None:
        calibrate()
        with ExitStack() as undo:  # all of it, or nothing
            undo.callback(run_hooks.detach, self.recorder)
            run_hooks.attach(self.recorder)
            enter_mode(self.recorder)
            undo.callback(leave_mode, self.recorder)
            if self.builder.has_journal:
                self.helper = HelperThread("memfit journal", self._flush_often)
                self.helper.start()
            undo.pop_all()

    def catch_up(self) -> None:
        self.recorder.catch_up()

    def adopt(self, subjects: Sequence[Any]) -> None:
        with self.recorder.quiet():
            self.recorder.models.adopt(subjects)

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        return self.recorder.modules()

    def elapsed_ns(self) -> int:
        return self.builder.elapsed_ns()

    def fail(self, error: BaseException) -> None:
        self.recorder.fail(error)

    def where_it_ran_out(self, error: BaseException) -> tuple[int, str]:
        identity, time_ns, op = self.recorder.out_of_memory or (0, 0, "")
        if identity != id(error):  # memory that no operator asked for: a library's, or a collective's
            return self.elapsed_ns(), ""
        return time_ns, op

    def close(self) -> None:
        if self.helper is not None:
            self.helper.stop()
            self.helper = None
        self._leave_mode()
        run_hooks.detach(self.recorder)
        self.recorder.catch_up()
        self.recorder.end()

    def _flush_often(self, stopping: threading.Event) -> None:
        """New events, to the journal."""
        while not stopping.wait(FLUSH_SECONDS) and not self.recorder.failed:
            try:
                self.builder.flush()
            except Exception as error:
                self.recorder.fail(error)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Context manager: records everything inside."""
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
        self.is_given_up = True
        self.recorder.give_up()
        self.builder.give_up_journal()
        if self.recorder in modes_of_this_thread():
            leave_mode(self.recorder)
