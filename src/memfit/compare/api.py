"""``memfit.compare``: a grid of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memfit.compare.cache import CellCache, default_folder
from memfit.compare.cell import Cell, Figures, Inputs
from memfit.compare.defaults import model_grid
from memfit.compare.grid import MODEL_AXES, Axes, Grid, Subject, combinations, read_axes
from memfit.compare.processes import num_cores, run_jobs
from memfit.compare.result import Comparison
from memfit.compare.user_functions import arguments, check_arguments, locate
from memfit.errors import ConfigError

Progress = Callable[[Cell, int, int], None]
"""Told of every cell as it is done: the cell, how many are done, how many there are."""


def compare(
    function: str | Callable[..., Any] = "",
    *,
    model: str = "",
    hf: str | Path = "",
    gpu: str | Sequence[str] = "H200",
    world_size: int | Sequence[int] = 1,
    steps: int = 3,
    torch_version: str = "",
    alloc_conf: str = "",
    jobs: int | None = None,
    cache: bool | Path = True,
    progress: Progress | None = None,
    **axes: Any,
) -> Comparison:
    """Predicts every combination of the axes, each in a process of its own, and puts them side by side.

    What is trained is a model by name, a Hugging Face config, or a function: ``"train.py:build"``, or one that a file defines. A
    function is called with the axes by name. Every other keyword is an axis: one value, or a list of them.

    ::

        comparison = memfit.compare(model="llama3-8b", gpu="H100-80GB", world_size=8, strategy=["full_shard", "shard_grad_op"])
        comparison.best.figures.smallest_fit, comparison.recommended.inputs

    A model with no axis of several values gets the ones that matter most: strategy and checkpointing.
    """
    subject = Subject(model=model, hf=str(Path(hf).resolve()) if hf else "", function=locate(function) if function else "")
    given = read_axes({"gpu": gpu, "world_size": world_size, **axes})
    grid = make_grid(subject, given)
    known = CellCache(cache if isinstance(cache, Path) else default_folder()) if cache else None
    if (jobs is not None and jobs < 1) or steps < 1:
        raise ConfigError(f"cannot compare with {steps} steps and {jobs} jobs: at least one of each")
    settings = {"steps": steps, "torch_version": torch_version, "alloc_conf": alloc_conf}
    cells = predict_cells(grid.cells, settings, known, jobs or num_cores(), progress or (lambda cell, done, total: None))
    return Comparison(subject=subject, cells=cells, varying=grid.varying, gpus=given["gpu"], left_out=grid.left_out)


def make_grid(subject: Subject, axes: Axes) -> Grid:
    """The cells; a mistake in any of them is told before the first is predicted."""
    if subject.function:
        check_arguments(subject.function, arguments(dict.fromkeys(axes)))
        return Grid(subject=subject, cells=tuple(subject.inputs | cell for cell in combinations(axes)))
    for name in axes:
        if name not in (*MODEL_AXES, "gpu", "world_size"):
            raise ConfigError(f"a model by name has no axis {name!r}: use one of {', '.join(MODEL_AXES)}")
    return model_grid(subject, axes)


def predict_cells(
    cells: Sequence[Inputs], settings: dict[str, Any], known: CellCache | None, num_lanes: int, progress: Progress
) -> tuple[Cell, ...]:
    """The cells in their order, from the cache where it has them. Each is kept as soon as it is done: stopping loses nothing."""
    jobs = [{"inputs": inputs} | settings for inputs in cells]
    found: dict[int, Cell] = {}

    def done(number: int, cell: Cell) -> None:
        found[number] = cell
        progress(cell, len(found), len(jobs))

    for number, job in enumerate(jobs):
        figures = known.find(job) if known is not None else None
        if figures is not None:
            done(number, Cell(inputs=cells[number], figures=figures, cached=True))
    missing = [number for number in range(len(jobs)) if number not in found]
    for index, answer in run_jobs([jobs[number] for number in missing], num_lanes):
        number = missing[index]
        if known is not None and "figures" in answer:
            known.keep(jobs[number], answer)
        done(number, _cell(cells[number], answer))
    return tuple(found[number] for number in range(len(jobs)))


def _cell(inputs: Inputs, answer: dict[str, Any]) -> Cell:
    if "figures" in answer:
        return Cell(inputs=inputs, figures=Figures.from_json(answer["figures"]))
    return Cell(inputs=inputs, error=answer["error"], details=answer["details"])
