"""Cached cells of a comparison, damaged: each is taken for none, or has figures that can be shown."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from attack.mutations import damage_bytes, damage_plain
from attack.protocol import Attack, Tried

FIGURES: dict[str, Any] = {
    "peak_allocated": 40 * 2**30,
    "peak_reserved": 44 * 2**30,
    "smallest_fit": 42 * 2**30,
    "fits": True,
    "margin": 3 * 2**30,
    "capacity": 78 * 2**30,
    "num_alloc_retries": 2,
    "least_gpu": "H100-80GB",
    "peak_phase": "backward",
    "breakdown": {"parameter": 16 * 2**30, "activation": 20 * 2**30},
    "assumptions": ["kernels are those of torch 2.11"],
    "seconds": 1.5,
}


class DamagedCells(Attack):
    name = "cells"
    promise = "a damaged cell of the cache is predicted anew, or can be shown"
    share = 1.0

    def prepare(self, folder: Path) -> None:
        from memfit.compare.cache import CellCache
        from memfit.compare.grid import make_grid
        from memfit.job import PredictOptions, Subject
        from memfit.job.axes import read_axes

        self.subject = Subject(model="llama3-8b")
        axes = {"gpu": ["H100-80GB"], "world_size": [8], "strategy": ["full_shard", "shard_grad_op"]}
        self.grid = make_grid(self.subject, read_axes(axes), PredictOptions())
        self.job = self.grid.cells[0].to_json()
        self.cache = CellCache(folder)
        self.cache.keep(self.job, {"sources": {str(Path(__file__)): "0"}, "figures": FIGURES})
        (self.path,) = (folder / "cells").rglob("*.json")
        self.show()

    def attempt(self, chance: Random, folder: Path) -> Tried:
        sound = {"sources": {}, "figures": FIGURES}
        entry = json.dumps(damage_plain(chance, sound)).encode()
        self.path.write_bytes(entry if chance.random() < 0.7 else damage_bytes(chance, json.dumps(sound).encode(), entry))
        return Tried(files=1, refused=int(not self.show()))

    def show(self) -> bool:
        """Draws a comparison of the cell, if there is one."""
        from memfit.compare import Comparison
        from memfit.job import Cell

        figures = self.cache.find(self.job)
        if figures is None:
            return False
        one, other = self.grid.cells[:2]
        cells = (Cell(configuration=one, figures=figures, cached=True), Cell(configuration=other, error="it did not build"))
        comparison = Comparison(subjects=(self.subject,), cells=cells, varying=self.grid.varying, gpus=("H100-80GB",))
        with open("/dev/null", "w") as nowhere:
            Console(file=nowhere, width=120).print(comparison)
        json.dumps(comparison.to_json())
        comparison.to_csv()
        return True


ATTACK = DamagedCells()
