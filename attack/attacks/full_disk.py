"""A disk that takes no more after so many bytes: what was there stays whole, and nothing half-written is left."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from random import Random

from attack.commands import run_here
from attack.protocol import Attack, Fell, Tried
from attack.samples import ledgers
from memfit.allocator.engine import native
from memfit.ledger import Ledger

WRITING = (
    ("report", "{file}", "-o", "{out}"),
    *(("export", "{file}", "--to", form, "-o", "{out}") for form in ("memory-viz", "perfetto", "speedscope", "csv", "json")),
)
BEFORE = b"what was there before"


class FullDisk(Attack):
    name = "full disk"
    promise = "a full disk is told in a line, and what was there stays whole"
    share = 0.5

    def prepare(self, folder: Path) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        native.library()
        self.run = ledgers()[0]
        self.run.save(folder / "run.memfit")

    def attempt(self, chance: Random, folder: Path) -> Tried:
        out = folder / "out"
        out.write_bytes(BEFORE)
        others = sorted(path.name for path in folder.iterdir())
        room = chance.choice((0, 1, 100, chance.randrange(5000), 10**6))
        argv = tuple(word.format(file=folder / "run.memfit", out=out) for word in chance.choice(WRITING))
        saves = chance.random() < 0.3
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        try:
            refused = self._save(out) if saves else run_here(argv).refused
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if refused and out.read_bytes() != BEFORE:
            raise Fell(f"with room for {room} bytes, {' '.join(argv)} left half of what it wrote")
        if saves and not refused:
            Ledger.load(out).check()
        if sorted(path.name for path in folder.iterdir()) != others:
            raise Fell(f"with room for {room} bytes, {' '.join(argv)} left something behind")
        return Tried(commands=1, refused=int(refused))

    def _save(self, out: Path) -> bool:
        try:
            self.run.save(out)
        except OSError:
            return True
        return False


ATTACK = FullDisk()
