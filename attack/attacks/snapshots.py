"""PyTorch's snapshots with damaged bytes, damaged values, and instructions that no snapshot has."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from attack.commands import OVER_LOGS
from attack.file_cases import FileAttack
from attack.mutations import damage_bytes, damage_plain
from attack.samples import ledger_bytes, pickle_bytes, snapshots
from memfit.allocator import load_requests, replay
from memfit.explain import explain

PIECES = (
    b"cos\nsystem\n(S'touch /tmp/memfit-was-here'\ntR",
    b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R",
    b"cposix\nsystem\n",
    b"\x8c\x04evalQ",
    b"r\xff\xff\xff\x7f",
    b"j\xff\xff\xff\xff",
    b"\x85" * 500,
    b"h\x00h\x00\x86\x94" * 60,
    b"(" * 400,
    b"]" * 3000,
    b"}" * 3000,
    b"\x8b\xff\xff\xff\x7f",
    b"X\xff\xff\xff\xff",
    b"\x8d" + b"\xff" * 8,
    b"\x95" + b"\xff" * 8,
    b"\x82\x01",
    b"b",
    b"2" * 100,
    b"0" * 10,
    b"I99999999999999999999\n",
    b".",
)


class DamagedSnapshots(FileAttack):
    name = "snapshots"
    promise = "a damaged snapshot is read or refused in a line; nothing in it is executed"
    share = 3.0
    commands = OVER_LOGS

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        self.samples, self.others = snapshots(), ledger_bytes(folder)

    def damaged(self, chance: Random) -> bytes:
        snapshot: Any = chance.choice(self.samples)
        protocol, kind = chance.choice((2, 3, 4, 5)), chance.random()
        if kind < 0.5:
            return pickle_bytes(damage_plain(chance, snapshot), protocol)
        data = pickle_bytes(snapshot, protocol)
        if kind < 0.75:
            return damage_bytes(chance, data, chance.choice(self.others))
        place = chance.randrange(2, len(data))
        return data[:place] + chance.choice(PIECES) * chance.choice((1, 1, 30)) + data[place:]

    def read(self, path: Path) -> None:
        replay(load_requests(path))
        explain(path)


ATTACK = DamagedSnapshots()
