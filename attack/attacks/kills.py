"""A process that is killed at some moment of a tracked run."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path
from random import Random

import torch

import memfit
from attack.protocol import Attack, Fell, Limits, Tried
from attack.training import make, train
from memfit.ledger import Ledger, builder


class Kills(Attack):
    name = "kills"
    promise = "a killed run leaves a lawful ledger that says it is incomplete"
    share = 2.0
    limits = Limits(cpu_seconds=20.0, memory_bytes=6 * 2**30)

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        builder.FLUSH_NS = 0  # a flush whenever one is possible: many chances to die in one
        train(*make(), 1)

    def attempt(self, chance: Random, folder: Path) -> Tried:
        path = folder / "run.memfit"
        path.unlink(missing_ok=True)
        told, telling = os.pipe()
        child = os.fork()
        if child == 0:
            self._train_for_ever(path, telling)
        os.close(telling)  # so that reading ends when the child does
        steps = chance.randrange(4)
        for _ in range(1 + steps):
            if not os.read(told, 1):
                os.waitpid(child, 0)
                os.close(told)
                raise Fell("the run ended before it was killed; what it said is above")
        for _ in range(chance.randrange(2000)):  # somewhere in the next step
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        ledger = Ledger.load(path).check()
        if ledger.info.complete:
            raise Fell("it says that it is complete")
        if len(ledger.step_starts) < steps:
            raise Fell(f"{steps} steps were over, and {len(ledger.step_starts)} are in the ledger")
        return Tried(files=1)

    def _train_for_ever(self, path: Path, telling: int) -> None:
        """Never returns: what the child would do after that is the parent's."""
        try:
            model, optimizer = make()
            with memfit.track(model, optimizer, save_to=path):
                os.write(telling, b"x")
                while True:
                    train(model, optimizer, 1)
                    os.write(telling, b"x")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)


ATTACK = Kills()
