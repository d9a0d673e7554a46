"""Which cell to run, and why; and what to try if none fits. Facts only: ``memfit.views`` has the words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memfit.choices import CHEAPER_FIRST, OPTIMIZERS, STRATEGIES, Split, cost_of
from memfit.job import Cell, CellResult
from memfit.job.cell import SAFETY_MARGIN
from memfit.ledger import Category, Phase

SAME_SPEED: Final = 0.03
"""Times that differ by less than this are taken to be the same."""

ROOM: Final = 0.4
"""With more than this part of the memory left, a larger batch is worth a look."""

_GROWS_WITH_THE_BATCH: Final = (
    Category.ACTIVATION,
    Category.FORWARD_TEMPORARY,
    Category.BACKWARD_TEMPORARY,
    Category.OPTIMIZER_TEMPORARY,
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A flag and a value to give it."""

    axis: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The cell to run on a GPU, the fastest of those that fit."""

    cell: Cell
    num_fitting: int
    """How many fit, this one included."""
    num_as_fast: int
    """How many of those need no more time for their work, this one included; 0 where times are not known."""
    decided_by: tuple[str, ...]
    """The axes on which the fastest differ and by which this one was chosen, the most costly first."""
    is_sure: bool
    """Does it fit by more than a prediction may be off?"""
    larger_batches: tuple[int, ...] = ()
    """Worth comparing, because much memory is left."""
    lighter_optimizer: str = ""
    """One that computes the same with a lower peak, where the peak is in the optimizer's step."""


@dataclass(frozen=True, kw_only=True)
class NothingFits:
    """The cell that comes closest on a GPU, and what to try next."""

    closest: Cell
    ways_out: tuple[Setting, ...]


def choose(cells: Sequence[Cell]) -> Cell | None:
    """The fastest of those that surely fit, or at least fit; of several that are as fast, the one that is cheapest to run."""
    fitting = [cell for cell in cells if cell.fits]
    return min(as_fast_as_any([cell for cell in fitting if is_sure(cell)] or fitting), key=burden, default=None)


def as_fast_as_any(cells: Sequence[Cell]) -> list[Cell]:
    """Those that need the least time for their work, and those that may: a prediction of time cannot tell them apart."""
    times = [_seconds_for_work(cell) for cell in cells]
    if not times or any(time is None for time in times):
        return list(cells)
    least = min(time for time in times if time is not None)
    return [cell for cell, time in zip(cells, times, strict=True) if time is not None and time <= least * (1 + SAME_SPEED)]


def _seconds_for_work(cell: Cell) -> float | None:
    """Seconds of one GPU for a token where tokens are known, otherwise for a sample, or for a step; ``None`` where no time is."""
    figures, batch = cell.figures, cell.inputs.get("batch")
    if figures is None or not figures.step_seconds:
        return None
    if figures.tokens_per_second:
        return 1 / figures.tokens_per_second
    return figures.step_seconds / (batch if isinstance(batch, int) and batch > 0 else 1)


def is_sure(cell: Cell) -> bool:
    return cell.figures is not None and cell.figures.margin >= SAFETY_MARGIN * cell.figures.capacity


def burden(cell: Cell) -> tuple[Any, ...]:
    """Fewest GPUs, then what costs least, then most work per step, then least memory."""
    inputs = cell.inputs
    costs = [cost_of(axis, inputs.get(axis)) for axis in CHEAPER_FIRST]
    work = [-value for value in (inputs.get("batch"), inputs.get("seq")) if isinstance(value, int)]
    return (inputs["world_size"], *costs, work, cell.smallest_fit)


def advise(cells: Sequence[Cell], varying: Sequence[str], gpu: str) -> Recommendation | NothingFits | None:
    """What to run on a GPU, or what to try; ``None`` where nothing could be predicted."""
    here = [cell for cell in cells if cell.inputs["gpu"] == gpu and cell.figures is not None]
    chosen = choose(here)
    if chosen is not None:
        return _recommend(chosen, [cell for cell in here if cell.fits], varying)
    if not here:
        return None
    closest = max(here, key=lambda cell: _figures(cell).margin)
    return NothingFits(closest=closest, ways_out=tuple(_ways_out(closest)))


def _recommend(chosen: Cell, fitting: list[Cell], varying: Sequence[str]) -> Recommendation:
    figures, inputs = _figures(chosen), chosen.inputs
    roomy = "batch" not in varying and figures.margin > ROOM * figures.capacity and "function" not in inputs
    optimizer = OPTIMIZERS.get(inputs.get("optimizer", "")) if figures.phase is Phase.OPTIMIZER else None
    fastest = as_fast_as_any([cell for cell in fitting if is_sure(cell)] or fitting)
    differing = [axis for axis in ("world_size", *CHEAPER_FIRST) if len({str(cell.inputs.get(axis)) for cell in fastest}) > 1]
    return Recommendation(
        cell=chosen,
        num_fitting=len(fitting),
        num_as_fast=len(fastest) if figures.step_seconds else 0,
        decided_by=tuple(differing),
        is_sure=is_sure(chosen),
        larger_batches=tuple(inputs["batch"] * factor for factor in (1, 2, 4)) if roomy else (),
        lighter_optimizer=optimizer.lighter if optimizer is not None else "",
    )


def _ways_out(cell: Cell) -> Iterator[Setting]:
    """What reduces the largest part of the peak, for a named model; then the least GPU on which it fits as it is."""
    inputs, figures = cell.inputs, _figures(cell)
    if "function" not in inputs:
        yield from _other_settings(inputs, figures)
    if figures.least_gpu:
        yield Setting(axis="gpu", value=figures.least_gpu)


def _other_settings(inputs: dict[str, Any], figures: CellResult) -> Iterator[Setting]:
    if figures.largest in _GROWS_WITH_THE_BATCH:
        if inputs["checkpointing"] != "full":
            yield Setting(axis="checkpointing", value="full")
        shorter = "batch" if inputs["batch"] > 1 else "seq"
        yield Setting(axis=shorter, value=inputs[shorter] // 2)
    strategy = STRATEGIES.get(inputs["strategy"])
    if strategy is None or strategy.split is Split.NOTHING or not strategy.reshards:
        yield Setting(axis="strategy", value="full_shard")
    yield Setting(axis="world_size", value=2 * inputs["world_size"])
    if inputs["offload"] == "none":
        yield Setting(axis="offload", value="params")


def _figures(cell: Cell) -> CellResult:
    assert cell.figures is not None
    return cell.figures
