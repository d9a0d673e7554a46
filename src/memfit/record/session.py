"""The protocol of a recording, whatever its source.

::

    session.attach()       hooks are in place, the source sees the run
    ...                    the run
    session.catch_up()     a ledger read now is up to date
    session.close()        everything is undone, no scope is open

A session belongs to the process that attached it. A forked child has a copy of everything: there the session is given up before any
other code runs, and its file is left to the parent.
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


class RecordingSession(ABC):
    """A recording, from its attachment to its end. It can be attached again, and goes on with the same ledger."""

    is_given_up = False
    """In a forked child: the recording is the parent's."""

    @property
    @abstractmethod
    def builder(self) -> LedgerBuilder:
        """What the ledger is built with at the moment."""

    @property
    def num_steps_on_disk(self) -> int:
        """The last step whose figures are in the journal; 0 where that is not counted."""
        return 0

    @abstractmethod
    def attach(self) -> None:
        """Puts hooks in place; raises what went wrong, with everything undone."""

    @abstractmethod
    def catch_up(self) -> None:
        """Writes what is known but not written, so that a ledger read now is up to date."""

    @abstractmethod
    def close(self) -> None:
        """Undoes everything that ``attach`` did, whatever has happened since. It never raises: the run is not ours to end."""

    @abstractmethod
    def give_up(self) -> None:
        """In the child of a fork: neither records nor writes from now on."""

    @abstractmethod
    def adopt(self, subjects: Sequence[Any]) -> None:
        """Makes known the models, optimizers and tensors that existed before the recording. Keeps no reference to them."""

    @abstractmethod
    def leave_steps_to_caller(self) -> None:
        """From now on, steps begin where ``mark_step`` is called, and nowhere else."""

    @abstractmethod
    def mark_step(self, number: int | None = None) -> None:
        """A training step begins here: the one with this number, or the next."""

    @abstractmethod
    def modules(self) -> Iterator[tuple[nn.Module, int]]:
        """The modules that were seen and still exist, each with its number in the ledger."""

    @abstractmethod
    def elapsed_ns(self) -> int:
        """The time on the ledger's clock."""

    @abstractmethod
    def where_it_ran_out(self, error: BaseException) -> tuple[int, str]:
        """When memory ran out, on the ledger's clock, and the operator that asked for it; empty where that is not known."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Stops recording, says so once, and lets the run go on."""


_sessions: weakref.WeakSet[RecordingSession] = weakref.WeakSet()


_held: list[RecordingSession] = []
_held_builders: list[LedgerBuilder] = []
"""Each once: two witnesses of a run may write into one ledger."""


def mind_forks(session: RecordingSession) -> None:
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
