"""What attacks with damaged files share: the file, the reader it goes through, and now and then a command."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from random import Random
from typing import ClassVar

from attack.commands import OVER_LEDGERS, choose, run_apart, run_here
from attack.protocol import Attack, Fell, Tried
from memfit.allocator.engine import native
from memfit.errors import MemfitError
from memfit.testing import ledger

COMMAND_EVERY = 6
"""One case in so many goes through a whole command as well."""
PROCESS_EVERY = 2000
"""And one in so many through a process of its own, as a user would start it."""


class FileAttack(Attack):
    """Damages a file and has it read."""

    commands: ClassVar[tuple[tuple[str, ...], ...]] = OVER_LEDGERS

    def prepare(self, folder: Path) -> None:
        native.library()  # later nothing may be loaded any more
        self.sound = folder / "sound.memfit"
        ledger("alloc 8MiB parameter w on cuda:0; step; alloc 3MiB x on cuda:0; free x").save(self.sound)

    @abstractmethod
    def damaged(self, chance: Random) -> bytes:
        """A file that is not sound."""

    @abstractmethod
    def read(self, path: Path) -> None:
        """Through the reader, and what is made of it."""

    def attempt(self, chance: Random, folder: Path) -> Tried:
        file = folder / "damaged"
        file.write_bytes(self.damaged(chance))
        refused = 0
        try:
            self.read(file)
        except MemfitError as error:
            refused = 1
            if not str(error) or len(str(error)) > 20_000:
                raise Fell(f"it was refused with {len(str(error))} characters") from error
        number_of_commands = 0
        if chance.randrange(COMMAND_EVERY) == 0:
            run_here(choose(chance, self.commands, file, self.sound))
            number_of_commands += 1
        if chance.randrange(PROCESS_EVERY) == 0:
            run_apart(choose(chance, self.commands, file, self.sound))
            number_of_commands += 1
        return Tried(files=1, commands=number_of_commands, refused=refused)
