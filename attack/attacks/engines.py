"""Runs that no program makes, through the allocator in C and in Python: they agree, and keep the laws."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
from helpers.extreme_runs import Seeded, extreme_run

from attack.protocol import Attack, Fell, Tried
from memfit.allocator import AllocatorSettings
from memfit.allocator.engine import Outcome, native, python
from memfit.allocator.replaying import Replay


class Engines(Attack):
    name = "engines"
    promise = "the allocator in C does what the one in Python does, and reserved is never below active"
    share = 1.0

    def prepare(self, folder: Path) -> None:
        self.library = native.library()

    def attempt(self, chance: Random, folder: Path) -> Tried:
        run = extreme_run(Seeded(chance))
        outcome = python.run(run.prepared, run.rules)
        replay = Replay(run.requests, AllocatorSettings(), run.prepared, run.rules, outcome)
        if (replay.reserved < replay.active).any() or (replay.active < replay.allocated).any() or (replay.allocated < 0).any():
            raise Fell(f"the laws do not hold: {run.said}")
        if self.library is not None:
            other = native.run(self.library, run.prepared, run.rules)
            differing = [f.name for f in fields(Outcome) if not np.array_equal(getattr(outcome, f.name), getattr(other, f.name))]
            if differing:
                raise Fell(f"the engines differ in {', '.join(differing)}: {run.said}")
        return Tried()


ATTACK = Engines()
