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
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from memfit.ledger import Category, LedgerBuilder
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
        mind_forks(self)

    def leave_steps_to_caller(self) -> None:
        """Steps begin where ``mark_step`` is called, and nowhere else."""
        self.recorder.marks_steps = False

    def mark_step(self) -> None:
        """A training step begins here."""
        self.recorder.mark_step()

    def attach(self) -> None:
        calibrate()
        with ExitStack() as undo:  # all of it, or nothing
            undo.callback(run_hooks.detach, self.recorder)
            run_hooks.attach(self.recorder)
            enter_mode(self.recorder)
            undo.callback(leave_mode, self.recorder)
            if self.builder.has_journal:
                self._flusher = _Flusher(self.recorder)
            undo.pop_all()

    def catch_up(self) -> None:
        self.recorder.catch_up()

    def adopt(self, subjects: Sequence[Any]) -> None:
        """Makes known what existed before the recording began. Nothing is held on to."""
        roles = self.recorder.roles
        with self.recorder.quiet():
            for subject in subjects:
                if isinstance(subject, nn.Module):
                    roles.learn_model(subject)
                elif isinstance(subject, torch.Tensor):
                    roles.assign(subject, Category.INPUT, before=True)
            # Optimizers last: only models know the names of parameters.
            for subject in subjects:
                if isinstance(subject, torch.optim.Optimizer):
                    roles.learn_optimizer(subject, before=True)

    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        """The modules that were seen and still exist, each with its number in the ledger."""
        return self.recorder.modules()

    def elapsed_ns(self) -> int:
        """The time on the ledger's clock."""
        return self.builder.elapsed_ns()

    def fail(self, error: BaseException) -> None:
        """Stops recording, says so once, and lets the run go on."""
        self.recorder.fail(error)

    def where_it_ran_out(self, error: BaseException) -> tuple[int, str]:
        """When memory ran out, on the ledger's clock, and the operator that asked for it, if one did."""
        identity, time_ns, op = self.recorder.out_of_memory or (0, 0, "")
        if identity != id(error):  # memory that no operator asked for: a library's, or a collective's
            return self.elapsed_ns(), ""
        return time_ns, op

    def close(self) -> None:
        """Undoes everything that ``attach`` did, whatever has happened since. It never raises: the run is not ours to end."""
        if self._flusher is not None:
            self._flusher.stop()
            self._flusher = None
        self._leave_mode()
        run_hooks.detach(self.recorder)
        self.recorder.catch_up()
        self.recorder.end()

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


class _Forkable(Protocol):
    """A recording that a fork must not tear apart."""

    builder: LedgerBuilder

    def give_up(self) -> None: ...


_sessions: weakref.WeakSet[_Forkable] = weakref.WeakSet()


_held: list[_Forkable] = []
_held_builders: list[LedgerBuilder] = []
"""Each once: two witnesses of a run may write into one ledger."""


def mind_forks(session: _Forkable) -> None:
    """From now on, a fork leaves this recording to the parent."""
    _sessions.add(session)


def _hold_all() -> None:
    """A fork is near: what the child gets a copy of must be whole."""
    _held[:] = _sessions
    _held_builders.clear()
    for builder in {id(session.builder): session.builder for session in _held}.values():
        if builder.hold_still():
            _held_builders.append(builder)  # one by one: an error in the midst leaves none of them held


def _release_all() -> None:
    """The parent goes on."""
    _held.clear()
    while _held_builders:
        _held_builders.pop().go_on()


def _give_up_all() -> None:
    """A child of a fork begins."""
    for session in _held:
        session.give_up()
    _held.clear()
    _held_builders.clear()
    run_hooks.detach_all()


if hasattr(os, "register_at_fork"):  # elsewhere there are no forks
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_give_up_all)
