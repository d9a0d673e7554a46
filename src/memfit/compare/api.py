"""``memfit.compare``: a grid of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

from memfit.compare.cache import CellCache, open_cache
from memfit.compare.grid import Grid, make_grid
from memfit.compare.result import Comparison
from memfit.errors import ConfigError
from memfit.job import Cell, Configuration, PredictOptions, Subject
from memfit.job.axes import read_axes
from memfit.models import find_model
from memfit.workers.executors import open_runner
from memfit.workers.lanes import num_cores

STOPPED = "not predicted: you stopped it"
"""Of cells that were still to come when the user pressed Ctrl-C."""

Progress = Callable[[Cell, int, int], None]
"""Told of every cell as it is done: the cell, how many are done, how many there are."""


def compare(
    function: str | Callable[..., Any] = "",
    *,
    model: str | Sequence[str] = "",
    hf: str | Path = "",
    gpu: str | Sequence[str] = "H200",
    world_size: int | Sequence[int] = 1,
    steps: int = 3,
    torch_version: str = "",
    alloc_conf: str = "",
    expected: Mapping[str, float] | None = None,
    interconnect: str = "",
    jobs: int | None = None,
    cache: bool | Path = True,
    progress: Progress | None = None,
    **axes: Any,
) -> Comparison:
    """Predicts every combination of the axes, each in a process of its own, and puts them side by side.

    What is trained is a model by name, a Hugging Face config, or a function: ``"train.py:build"``, or one that a file defines. A
    function is called with the axes by name. Every other keyword is an axis: one value, or a list of them. ``expected`` and
    ``interconnect`` are those of ``memfit.predict``.

    ::

        comparison = memfit.compare(model="llama3-8b", gpu="H100-80GB", world_size=8, strategy=["full_shard", "shard_grad_op"])
        comparison.best.figures.smallest_fit, comparison.recommended.inputs

    Several models by name are compared with one another: ``model=["llama3-8b", "qwen3-8b"]``. A model with no axis of several
    values gets the ones that matter most: strategy and checkpointing.
    """
    models = [model] if isinstance(model, str) else list(model)
    subjects = [Subject.of(function, find_model(each).name if each else "", hf) for each in models]
    given = read_axes({"gpu": gpu, "world_size": world_size, **axes})
    options = PredictOptions(
        steps=steps, torch_version=torch_version, alloc_conf=alloc_conf, expected=expected or {}, interconnect=interconnect
    )
    grids = [make_grid(subject, given, options) for subject in subjects]
    named = [(f"{subject.name}: " if len(subjects) > 1 else "", grid) for subject, grid in zip(subjects, grids, strict=True)]
    left_out = tuple(f"{name}{reason}" for name, grid in named for reason in grid.left_out)
    grid = Grid(cells=tuple(cell for grid in grids for cell in grid.cells), left_out=left_out)
    if jobs is not None and jobs < 1:
        raise ConfigError(f"cannot compare with {jobs} jobs: at least one")
    cells = predict_cells(grid.cells, open_cache(cache), jobs or num_cores(), progress or (lambda cell, done, total: None))
    return Comparison(subjects=tuple(subjects), cells=cells, varying=grid.varying, gpus=given["gpu"], left_out=grid.left_out)


def predict_cells(cells: Sequence[Configuration], known: CellCache | None, num_lanes: int, progress: Progress) -> tuple[Cell, ...]:
    """The cells in their order, from the cache where it has them. Each is kept as soon as it is done: stopping loses nothing, and
    those that are left say so."""
    found: dict[int, Cell] = {}

    def done(number: int, cell: Cell) -> None:
        found[number] = cell
        progress(cell, len(found), len(cells))

    for number, asked in enumerate(cells):
        figures = known.find(asked.to_json()) if known is not None else None
        if figures is not None:
            done(number, Cell(configuration=asked, figures=figures, cached=True))
    missing = [number for number in range(len(cells)) if number not in found]
    with open_runner(f"processes:{max(1, min(num_lanes, len(missing)))}") as runner:
        futures = {runner.submit(cells[number].to_json()): number for number in missing}
        try:
            for future in as_completed(futures):
                number, answer = futures[future], future.result()
                if known is not None and "figures" in answer:
                    known.keep(cells[number].to_json(), answer)
                done(number, Cell.of(cells[number], answer))
        except KeyboardInterrupt:
            if not found:
                raise
            left = [number for number in missing if number not in found]
            found |= {number: Cell(configuration=cells[number], error=STOPPED) for number in left}
    return tuple(found[number] for number in range(len(cells)))
