"""The finished ledger: files, categories, moments and laws."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from memfit.drawing import Drawn
from memfit.errors import LedgerLawError
from memfit.ledger import storage
from memfit.ledger.categories import decide_categories
from memfit.ledger.columns import Columns
from memfit.ledger.laws import violations
from memfit.ledger.moments import Moment, moments_at
from memfit.ledger.schema import TABLES, Array, Table


@dataclass(frozen=True, eq=False)
class Ledger(Columns, Drawn):
    """A run as columns. See ``memfit.ledger.schema`` for the tables and ``memfit.ledger.columns`` for what follows from them."""

    # -- files ---------------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Writes the ledger to one file that ``load`` and any safetensors reader can open."""
        tables = {kind.NAME: cast(Table, getattr(self, kind.NAME)) for kind in TABLES}
        storage.save(Path(path), tables, self.strings, self.devices, self.info)

    @classmethod
    def load(cls, path: Path | str) -> Ledger:
        """Reads a ledger, finished or cut short. A file that is no ledger raises ``LedgerFormatError``."""
        path = Path(path)
        contents = storage.load(path)
        tables: dict[str, Any] = {kind.NAME: table for kind, table in storage.validated_tables(path, contents).items()}
        return cls(**tables, strings=tuple(contents.strings), devices=tuple(contents.devices), info=contents.info)

    # -- what follows --------------------------------------------------------------------------------------------------------

    @cached_property
    def categories(self) -> Array:
        """Per block: its ``Category``."""
        return decide_categories(self)

    def moment_at(self, event: int) -> Moment:
        """The step, the phase and the module that an event fell in."""
        return moments_at(self, np.array([event]))[0]

    # -- laws ----------------------------------------------------------------------------------------------------------------

    def check(self) -> Ledger:
        """Raises ``LedgerLawError`` unless the events agree with each other; gives the ledger back."""
        found = violations(self)
        if found:
            raise LedgerLawError(found)
        return self

    def same_as(self, other: Ledger) -> bool:
        """Do both say exactly the same?"""
        words = ("strings", "devices", "info")
        if any(getattr(self, word) != getattr(other, word) for word in words):
            return False
        return all(
            np.array_equal(getattr(getattr(self, kind.NAME), f.name), getattr(getattr(other, kind.NAME), f.name))
            for kind in TABLES
            for f in fields(kind)
        )
