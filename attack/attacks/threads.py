"""Several threads, each with a tracker of its own or with none."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import torch

import memfit
from attack.protocol import Attack, Fell, Limits, Tried
from attack.training import left_behind, make, train
from memfit.ledger import Ledger

STEPS = 3


class Threads(Attack):
    name = "threads"
    promise = "trackers in several threads record what each thread does, and nothing else"
    share = 0.7
    limits = Limits(cpu_seconds=30.0, memory_bytes=6 * 2**30)

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        model, optimizer = make()
        with memfit.track(model, optimizer) as tracker:
            train(model, optimizer, STEPS)
        self.alone = sizes(tracker.ledger)

    def attempt(self, chance: Random, folder: Path) -> Tried:
        jobs = [make() for _ in range(chance.randint(2, 4))]
        trackers = [memfit.track(*job) if chance.random() < 0.8 else None for job in jobs]
        together = threading.Barrier(len(jobs))
        errors: list[BaseException] = []

        def work(number: int) -> None:
            together.wait()
            try:
                tracker = trackers[number]
                if tracker is None:
                    train(*jobs[number], STEPS)
                else:
                    with tracker:
                        train(*jobs[number], STEPS)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for tracker in trackers:
            if tracker is not None and sizes(tracker.ledger.check()) != self.alone:
                raise Fell(f"{len(jobs)} threads: a ledger differs from that of one thread alone")
        if left_behind():
            raise Fell(left_behind())
        return Tried()


def sizes(ledger: Ledger) -> list[tuple[int, int]]:
    """What happened, in no order: Python's garbage collector may free a tensor in whichever thread it runs."""
    return sorted(zip(ledger.events.kind.tolist(), ledger.events.size.tolist(), strict=True))


ATTACK = Threads()
