"""Ledgers with damaged bytes, damaged columns or damaged words, through every command that reads one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy

from attack.file_cases import FileAttack
from attack.mutations import damage_bytes, damage_columns, damage_plain
from attack.samples import journal_bytes, ledger_bytes
from memfit.analysis import build_report
from memfit.ledger import Ledger


def parts_of(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The columns and the metadata of a sound file."""
    (length,) = struct.unpack_from("<Q", data)
    return safetensors.numpy.load(data), json.loads(data[8 : 8 + length])["__metadata__"]


def with_damaged_parts(chance: Random, data: bytes) -> bytes:
    """Sound as a file, but what it says is not."""
    columns, metadata = parts_of(data)
    words: Any = json.loads(metadata["words"])
    if chance.random() < 0.6:
        columns = damage_columns(chance, columns)
    if chance.random() < 0.5:
        words = damage_plain(chance, words)
    columns = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    return bytes(safetensors.numpy.save(columns, metadata | {"words": json.dumps(words)}))


class DamagedLedgers(FileAttack):
    name = "ledgers"
    promise = "a damaged ledger is read or refused in a line"
    share = 4.0

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        self.samples, self.others = ledger_bytes(folder), journal_bytes(folder)

    def damaged(self, chance: Random) -> bytes:
        sample = chance.choice(self.samples)
        if chance.random() < 0.4:
            return damage_bytes(chance, sample, chance.choice(self.others))
        return with_damaged_parts(chance, sample)

    def read(self, path: Path) -> None:
        json.dumps(build_report(Ledger.load(path).check()).to_json())


ATTACK = DamagedLedgers()
