"""Allocators' logs (``.npz``) with damaged bytes and damaged arrays, packed and not."""

from __future__ import annotations

from pathlib import Path
from random import Random

from attack.commands import OVER_LOGS
from attack.file_cases import FileAttack
from attack.mutations import damage_bytes, damage_columns
from attack.samples import ledger_bytes, npz_bytes, trace_columns
from memfit.allocator import load_requests, replay


class DamagedTraces(FileAttack):
    name = "traces"
    promise = "a damaged log is read or refused in a line"
    share = 2.0
    commands = OVER_LOGS

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        self.columns, self.others = trace_columns(), ledger_bytes(folder)

    def damaged(self, chance: Random) -> bytes:
        packed = chance.random() < 0.5
        if chance.random() < 0.6:
            return npz_bytes(damage_columns(chance, self.columns), packed=packed)
        return damage_bytes(chance, npz_bytes(self.columns, packed=packed), chance.choice(self.others))

    def read(self, path: Path) -> None:
        replay(load_requests(path))


ATTACK = DamagedTraces()
