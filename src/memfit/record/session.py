"""The protocol of a recording, for every source.

::

    session.attach()       hooks are in place, the source sees the run
    ...                    the run
    session.catch_up()     a ledger read now is up to date
    session.close()        everything is undone, no scope is open

A session belongs to the process that attached it. A forked child gives up its copy before any other code runs,
and leaves the file to the parent.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from memfit.ledger import LedgerBuilder
from memfit.record import run_hooks
from memfit.record.helper_thread import HelperThread


class RecordingSession(ABC):
    """A recording from attachment to end. It can be attached again and continues the same ledger."""

    is_given_up = False
    """True in a forked child: the recording belongs to the parent."""
    helper: HelperThread | None = None
    """The thread that writes the journal, between ``attach`` and ``close``."""

    @property
    @abstractmethod
    def builder(self) -> LedgerBuilder:
        """The builder of the ledger; it may be replaced during a recording."""

    @property
    def num_steps_on_disk(self) -> int:
        """The last step whose figures are in the journal; 0 if that is not counted."""
        return 0

    @abstractmethod
    def attach(self) -> None:
        """Installs hooks. If that fails, undoes everything and raises."""

    @abstractmethod
    def catch_up(self) -> None:
        """Writes pending facts, so that a ledger read now is up to date."""

    @abstractmethod
    def close(self) -> None:
        """Undoes everything that ``attach`` did, even after a failure. Never raises."""

    @abstractmethod
    def give_up(self) -> None:
        """For the child of a fork: stops recording and writing."""

    @abstractmethod
    def adopt(self, subjects: Sequence[Any]) -> None:
        """Records the models, optimizers and tensors that existed before the recording. Keeps no references."""

    @abstractmethod
    def leave_steps_to_caller(self) -> None:
        """From now on, steps begin only where ``mark_step`` is called."""

    @abstractmethod
    def mark_step(self, number: int | None = None) -> None:
        """Starts a training step: the one with this number, by default the next."""

    @abstractmethod
    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        """The recorded modules that still exist, each with its number in the ledger."""

    @abstractmethod
    def elapsed_ns(self) -> int:
        """The time on the ledger's clock."""

    @abstractmethod
    def where_it_ran_out(self, error: BaseException) -> tuple[int, str]:
        """When memory ran out, on the ledger's clock, and the operator that requested it; empty if unknown."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Stops recording and warns once; the run goes on."""


_sessions: weakref.WeakSet[RecordingSession] = weakref.WeakSet()


_held: list[RecordingSession] = []
_held_builders: list[LedgerBuilder] = []
"""Each once: two witnesses of a run may write into one ledger."""


def mind_forks(session: RecordingSession) -> None:
    """Registers a session, so that a forked child gives it up."""
    _sessions.add(session)


def _hold_all() -> None:
    """Before a fork: blocks flushes, so that the child's copy is consistent, and ends our threads."""
    _held[:] = _sessions
    for session in _held:
        if session.helper is not None:
            session.helper.pause()  # first: one that flushes waits for what is held below
    _held_builders.clear()
    for builder in {id(session.builder): session.builder for session in _held}.values():
        if builder.hold_still():
            _held_builders.append(builder)  # one by one: an error in the midst leaves none of them held


def _release_all() -> None:
    """After a fork, in the parent: allows flushes again."""
    while _held_builders:
        _held_builders.pop().go_on()
    while _held:
        helper = _held.pop().helper
        if helper is not None:
            helper.resume()


def _give_up_all() -> None:
    """After a fork, in the child: gives up all sessions."""
    for session in _held:
        session.give_up()
    _held.clear()
    _held_builders.clear()
    run_hooks.detach_all()


if hasattr(os, "register_at_fork"):  # elsewhere there are no forks
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_give_up_all)
