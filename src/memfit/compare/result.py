"""What a comparison found."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memfit.compare.recommendation import choose
from memfit.drawing import Drawn
from memfit.job import Cell, Subject


@dataclass(frozen=True, kw_only=True)
class Comparison(Drawn):
    """Cells side by side, the one that needs least memory first, those that failed last."""

    subjects: tuple[Subject, ...]
    """What is trained; several if models are compared."""
    cells: tuple[Cell, ...]
    varying: tuple[str, ...]
    """The axes on which cells differ."""
    gpus: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """What was not predicted because it could not fit, each with the reason."""

    def __post_init__(self) -> None:
        ordered = sorted(self.cells, key=lambda cell: (cell.smallest_fit is None, cell.smallest_fit or 0))
        object.__setattr__(self, "cells", tuple(ordered))

    def __repr__(self) -> str:
        fitting = sum(cell.fits for cell in self.cells)
        return (
            f"Comparison({', '.join(subject.name for subject in self.subjects)}: {len(self.cells)} configurations, {fitting} fit)"
        )

    @property
    def best(self) -> Cell | None:
        """The cell that needs least memory, fit or not; ``None`` if all failed."""
        return next((cell for cell in self.cells if cell.figures is not None), None)

    @cached_property
    def recommended(self) -> Cell | None:
        """Of the cells that fit, the one that is fastest, and cheapest to run of several as fast; ``None`` if none fits."""
        return choose(self.cells)

    def to_json(self) -> list[dict[str, Any]]:
        """One flat object per cell: what went in, and figures or an error."""
        return [cell.to_json() for cell in self.cells]

    def to_csv(self) -> str:
        """The same, one line per cell."""
        rows = [_flat(plain) for plain in self.to_json()]
        names = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, [*names], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def _flat(plain: dict[str, Any]) -> dict[str, Any]:
    """Without what has no place in one column."""
    kept = {name: value for name, value in plain.items() if name not in ("breakdown", "assumptions")}
    return {
        name: "x".join(map(str, value)) if name == "mesh" and isinstance(value, list) else value for name, value in kept.items()
    }
