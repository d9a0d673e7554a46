"""Journals, as killed runs leave them: cut anywhere, damaged, or with sound checksums around damaged frames."""

from __future__ import annotations

from pathlib import Path
from random import Random

from attack.attacks.ledgers import DamagedLedgers, with_damaged_parts
from attack.mutations import damage_bytes
from attack.samples import journal_bytes, ledger_bytes
from memfit.ledger import storage


def framed(payload: bytes) -> bytes:
    import zlib

    checksum = zlib.crc32(payload)
    return storage._FRAME.pack(len(payload), checksum, storage._header_checksum(len(payload), checksum)) + payload


class DamagedJournals(DamagedLedgers):
    name = "journals"
    promise = "a damaged journal is read as far as it goes, or refused in a line"
    share = 2.0

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        self.samples, self.others = journal_bytes(folder), ledger_bytes(folder)

    def damaged(self, chance: Random) -> bytes:
        kind = chance.random()
        if kind < 0.3:
            journal = chance.choice(self.samples)
            return journal[: chance.randrange(len(journal) + 1)]
        if kind < 0.6:
            return damage_bytes(chance, chance.choice(self.samples), chance.choice(self.others))
        frames = [chance.choice(self.others) for _ in range(chance.choice((1, 2, 5)))]
        return storage.MAGIC + b"".join(framed(with_damaged_parts(chance, frame)) for frame in frames)


ATTACK = DamagedJournals()
