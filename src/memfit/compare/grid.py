"""The cells of a grid: every combination of what was given for each axis, and what varies if nothing was said.

Strategies and checkpointing on several GPUs, precision and checkpointing on one; without what cannot fit whatever else is done, so
that it is never waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memfit.choices import CHECKPOINTINGS, ENGINES, PRECISIONS, STRATEGIES, Split, compared
from memfit.errors import ConfigError
from memfit.hardware import GPUS_PER_NODE
from memfit.job import Configuration, PredictOptions, Subject
from memfit.job.axes import MODEL_AXES, Axes, combinations
from memfit.job.configuration import has_bf16
from memfit.job.states import least_state_bytes
from memfit.job.subject import check_arguments
from memfit.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells, and what was left out of them for a reason."""

    cells: tuple[Configuration, ...]
    left_out: tuple[str, ...] = ()

    @property
    def varying(self) -> tuple[str, ...]:
        """The axes on which cells differ; not the engine, where it follows from the strategy."""
        names = dict.fromkeys(name for cell in self.cells for name in cell.inputs)
        found = [name for name in names if self._num_values(name) > 1]
        if "strategy" in found and self._num_values("strategy") == self._num_values("strategy", "engine"):
            found = [name for name in found if name != "engine"]
        return tuple(found)

    def _num_values(self, *names: str) -> int:
        return len({str([cell.inputs.get(name) for name in names]) for cell in self.cells})


def make_grid(subject: Subject, axes: Axes, options: PredictOptions) -> Grid:
    """The cells; a mistake in any of them is told before the first is predicted. ``axes`` has ``gpu`` and ``world_size``, too."""
    others = [name for name in axes if name not in ("gpu", "world_size")]
    if subject.function:
        check_arguments(subject.function, others)
        return Grid(cells=tuple(_cells(subject, axes, options)))
    for name in others:
        if name not in MODEL_AXES:
            raise ConfigError(f"a model by name has no axis {name!r}: use one of {', '.join(MODEL_AXES)}")
    return model_grid(subject, axes, options)


def _cells(subject: Subject, axes: Axes, options: PredictOptions) -> Iterator[Configuration]:
    for chosen in combinations(axes):
        on_what = replace(options, gpu=chosen.pop("gpu"), world_size=chosen.pop("world_size"))
        yield Configuration.of(subject, chosen, on_what)


def model_grid(subject: Subject, axes: Axes, options: PredictOptions) -> Grid:
    """The cells for a named model or a config."""
    if not all(has_bf16(gpu) for gpu in axes["gpu"]):  # all GPUs are to compute the same
        axes = {"precision": ("fp16-mixed",)} | axes
    others = [values for name, values in axes.items() if name not in ("gpu", "world_size")]
    if any(len(values) > 1 for values in others):
        return _grid(subject, axes, options)
    several = max(axes["world_size"]) > 1
    strategies = _strategies(axes) if several else ("",)
    filled = {"strategy": strategies, "checkpointing": compared(CHECKPOINTINGS.values())} | axes
    if not several:
        filled = {"precision": compared(PRECISIONS.values())} | filled
    return _without_the_hopeless(subject, filled, options, offload_is_open="offload" not in axes)


def _strategies(axes: Axes) -> tuple[str, ...]:
    """Those worth comparing: hybrid ones where there are several nodes, and what every chosen engine can do."""
    several_nodes = max(axes["world_size"]) > GPUS_PER_NODE
    only_whole = all(name in ENGINES and not ENGINES[name].shards for name in axes.get("engine", ENGINES))
    found = [row for row in STRATEGIES.values() if several_nodes or row.split is not Split.NODE]
    return compared(row for row in found if row.split is Split.NOTHING or not only_whole)


def _grid(subject: Subject, axes: Axes, options: PredictOptions) -> Grid:
    """Each cell once: words that were left out may come to the same."""
    return Grid(cells=tuple({str(cell.inputs): cell for cell in _cells(subject, axes, options)}.values()))


def _without_the_hopeless(subject: Subject, axes: Axes, options: PredictOptions, *, offload_is_open: bool) -> Grid:
    grid = _grid(subject, axes, options)
    if subject.hf:  # only building the model would tell how many parameters it has
        return grid
    hopeless = [cell for cell in grid.cells if least_state_bytes(cell) > cell.options.capacity]
    kept = tuple(cell for cell in grid.cells if cell not in hopeless)
    if not kept and offload_is_open:
        offloaded = _grid(subject, axes | {"strategy": ("full_shard",), "offload": ("params",)}, options)
        return replace(offloaded, left_out=_reasons(hopeless))
    return Grid(cells=kept or grid.cells, left_out=_reasons(hopeless) if kept else ())


def _reasons(hopeless: list[Configuration]) -> tuple[str, ...]:
    found: dict[str, int] = {}
    for cell in hopeless:
        recipe = cell.recipe
        where = f"{recipe.strategy} on {cell.world_size} x {cell.gpu}" if recipe.strategy else f"one {cell.gpu} alone"
        in_few_bits = "" if PRECISIONS[recipe.precision].weights == "float32" else f", in {recipe.precision}"
        found[where + in_few_bits] = least_state_bytes(cell)
    return tuple(f"{what}: weights, gradients and optimizer state alone take {format_bytes(size)}" for what, size in found.items())
