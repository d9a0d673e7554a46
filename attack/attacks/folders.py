"""Outputs that cannot be written: into folders that are read-only, missing, files, or names too long."""

from __future__ import annotations

from pathlib import Path
from random import Random

from attack.attacks.full_disk import WRITING
from attack.commands import run_here
from attack.protocol import Attack, Fell, Tried
from attack.samples import ledgers


class Folders(Attack):
    name = "folders"
    promise = "an output that cannot be written is refused before the work"
    share = 0.2

    def prepare(self, folder: Path) -> None:
        ledgers()[0].save(folder / "run.memfit")
        (folder / "locked").mkdir()
        (folder / "locked").chmod(0o555)
        self.places = (
            folder,
            folder / "missing" / "out",
            folder / "run.memfit" / "out",
            folder / ("x" * 300),
            Path("/proc/out"),  # nobody can write there, not even root
            Path("/sys/out"),
        )

    def attempt(self, chance: Random, folder: Path) -> Tried:
        before = sorted(folder.rglob("*"))
        # The file to read is not there: whoever looks at it before the output says so.
        argv = tuple(word.format(file=folder / "gone", out=chance.choice(self.places)) for word in chance.choice(WRITING))
        said = run_here(argv)
        if not said.refused or "cannot write" not in said.err or sorted(folder.rglob("*")) != before:
            raise Fell(f"memfit {' '.join(argv)} was not refused for its output: {said.err}")
        return Tried(commands=1, refused=1)


ATTACK = Folders()
