"""Children that a tracked run forks, and what they do there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

import memfit
from attack.protocol import Attack, Fell, Limits, Tried
from attack.training import left_behind, make, train
from memfit.ledger import Ledger


def compute(tracker: memfit.Tracker, folder: Path) -> None:
    train(*make(), 1)


def leave(tracker: memfit.Tracker, folder: Path) -> None:
    train(*make(), 1)
    tracker.__exit__(None, None, None)
    sys.exit(0)


def raise_something(tracker: memfit.Tracker, folder: Path) -> None:
    try:
        with tracker:
            raise LookupError
    except LookupError:
        pass


def record(tracker: memfit.Tracker, folder: Path) -> None:
    with memfit.track(save_to=folder / "child.memfit"):
        train(*make(), 1)
    Ledger.load(folder / "child.memfit").check()


def ask(tracker: memfit.Tracker, folder: Path) -> None:
    tracker.ledger.check()


DEEDS: tuple[Callable[[memfit.Tracker, Path], None], ...] = (compute, leave, raise_something, record, ask)


class Forks(Attack):
    name = "forks"
    promise = "a forked child neither records nor writes; the parent's ledger is the parent's"
    share = 0.7
    limits = Limits(cpu_seconds=30.0, memory_bytes=6 * 2**30)

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        model, optimizer = make()
        with memfit.track(model, optimizer) as tracker:
            train(model, optimizer, 1)
            train(model, optimizer, 1)
        self.num_events = len(tracker.ledger.events)

    def attempt(self, chance: Random, folder: Path) -> Tried:
        model, optimizer = make()
        deeds = [chance.choice(DEEDS) for _ in range(chance.randint(1, 3))]
        path = folder / "run.memfit"
        with memfit.track(model, optimizer, save_to=path) as tracker:
            train(model, optimizer, 1)
            for deed in deeds:
                self._in_a_child(deed, tracker, folder)
                if Ledger.load(path).info.complete:
                    raise Fell(f"a child that did {deed.__name__} ended the parent's file")
            train(model, optimizer, 1)
        saved = Ledger.load(path).check()
        if not saved.info.complete or len(saved.events) != self.num_events:
            raise Fell(f"after {[deed.__name__ for deed in deeds]}: {len(saved.events)} events in place of {self.num_events}")
        if left_behind():
            raise Fell(left_behind())
        return Tried()

    def _in_a_child(self, deed: Callable[[memfit.Tracker, Path], None], tracker: memfit.Tracker, folder: Path) -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                deed(tracker, folder)
                status = 0
            except SystemExit as leaving:
                status = int(leaving.code or 0)
            finally:
                os._exit(status)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise Fell(f"a child could not {deed.__name__}")


ATTACK = Forks()
