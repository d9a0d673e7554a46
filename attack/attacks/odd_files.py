"""What is no file at all, or one of 40 GB: pipes, devices, directories, links to them, files that are not there."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from attack.commands import OVER_LEDGERS, choose, run_here
from attack.file_cases import FileAttack
from attack.protocol import Fell, Tried


class OddFiles(FileAttack):
    name = "odd files"
    promise = "what is no regular file, or a huge one, is refused at once"
    share = 0.3

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        os.mkfifo(folder / "pipe")
        for start in (b"", b"\x80\x04", b"PK\x03\x04", b"memfit-journal-1\n", (2**40).to_bytes(8, "little") + b"{"):
            with open(folder / f"sparse{len(start)}", "wb") as file:
                file.write(start)
                file.truncate(40 * 10**9)
        (folder / "link").symlink_to(folder / "pipe")
        (folder / "loop").symlink_to(folder / "loop")
        (folder / "empty").touch()
        sparse = [path for path in folder.iterdir() if path.name.startswith("sparse")]
        devices = [Path("/dev/zero"), Path("/dev/random"), Path("/dev/full"), Path("/dev/tty")]
        self.paths = sorted((*sparse, folder / "pipe", folder / "link", folder / "loop", folder / "empty", folder, *devices))
        self.paths += [folder / "missing", folder / ("x" * 300), Path("/proc/self/mem"), Path("/proc/self/environ")]

    def damaged(self, chance: Random) -> bytes:
        return b""

    def read(self, path: Path) -> None:
        pass

    def attempt(self, chance: Random, folder: Path) -> Tried:
        file = chance.choice(self.paths)
        argv = choose(chance, OVER_LEDGERS, folder / "placeholder", self.sound)
        said = run_here(tuple(str(file) if word == str(folder / "placeholder") else word for word in argv))
        if not said.refused:
            raise Fell(f"memfit {' '.join(said.argv)} was not refused")
        return Tried(files=1, commands=1, refused=1)


ATTACK = OddFiles()
