"""A process that may open no more files, or only a few."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from random import Random

from attack.commands import OVER_LEDGERS, choose, run_here
from attack.protocol import Attack, Tried
from attack.samples import ledgers


class NoDescriptors(Attack):
    name = "descriptors"
    promise = "a process without file descriptors is told so in a line"
    share = 0.3

    def prepare(self, folder: Path) -> None:
        self.file, self.sound = folder / "run.memfit", folder / "sound.memfit"
        ledgers()[0].save(self.file)
        ledgers()[1].save(self.sound)
        for argv in OVER_LEDGERS:  # modules are imported here: Python itself cannot import without descriptors
            run_here(choose(Random(0), (argv,), self.file, self.sound))

    def attempt(self, chance: Random, folder: Path) -> Tried:
        argv = choose(chance, OVER_LEDGERS, self.file, self.sound)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        in_use = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + chance.choice((-1, 0, 1, 2)), hard))
        try:
            said = run_here(argv)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return Tried(commands=1, refused=int(said.refused))


ATTACK = NoDescriptors()
