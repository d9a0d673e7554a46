"""What varies if nobody said what should.

Strategies and checkpointing on several GPUs, precision and checkpointing on one; without what cannot fit whatever else is done, so
that nobody waits for it.
"""

from __future__ import annotations

from memfit.choices import CHECKPOINTINGS, ENGINES, OPTIMIZERS, PRECISIONS, STRATEGIES, Split, compared
from memfit.compare.cell import Inputs
from memfit.compare.grid import Axes, Grid, Subject, combinations, has_bf16, recipe_inputs
from memfit.hardware import GPUS_PER_NODE, find_gpu
from memfit.models import find_model
from memfit.units import format_bytes


def model_grid(subject: Subject, axes: Axes) -> Grid:
    """The cells for a named model or a config."""
    if not all(has_bf16(gpu) for gpu in axes["gpu"]):  # all GPUs are to compute the same
        axes = {"precision": ("fp16-mixed",)} | axes
    others = [values for name, values in axes.items() if name not in ("gpu", "world_size")]
    if any(len(values) > 1 for values in others):
        return _grid(subject, axes, left_out=())
    several = max(axes["world_size"]) > 1
    strategies = _strategies(axes) if several else ("",)
    filled = {"strategy": strategies, "checkpointing": compared(CHECKPOINTINGS.values())} | axes
    if not several:
        filled = {"precision": compared(PRECISIONS.values())} | filled
    return _without_the_hopeless(subject, filled, offload_is_open="offload" not in axes)


def _strategies(axes: Axes) -> tuple[str, ...]:
    """Those worth comparing: hybrid ones where there are several nodes, and what every chosen engine can do."""
    several_nodes = max(axes["world_size"]) > GPUS_PER_NODE
    only_whole = all(name in ENGINES and not ENGINES[name].shards for name in axes.get("engine", ENGINES))
    found = [row for row in STRATEGIES.values() if several_nodes or row.split is not Split.NODE]
    return compared(row for row in found if row.split is Split.NOTHING or not only_whole)


def _grid(subject: Subject, axes: Axes, left_out: tuple[str, ...]) -> Grid:
    cells = {str(cell): cell for cell in (recipe_inputs(subject, chosen) for chosen in combinations(axes))}
    return Grid(subject=subject, cells=tuple(cells.values()), left_out=left_out)


def _without_the_hopeless(subject: Subject, axes: Axes, *, offload_is_open: bool) -> Grid:
    grid = _grid(subject, axes, left_out=())
    if subject.hf:  # only building the model would tell how many parameters it has
        return grid
    hopeless = [cell for cell in grid.cells if least_bytes(cell) > find_gpu(cell["gpu"]).capacity(int(cell["world_size"] > 1))]
    kept = tuple(cell for cell in grid.cells if cell not in hopeless)
    if not kept and offload_is_open:
        offloaded = _grid(subject, axes | {"strategy": ("full_shard",), "offload": ("params",)}, left_out=())
        return Grid(subject=subject, cells=offloaded.cells, left_out=_reasons(hopeless))
    return Grid(subject=subject, cells=kept or grid.cells, left_out=_reasons(hopeless) if kept else ())


def _reasons(hopeless: list[Inputs]) -> tuple[str, ...]:
    found: dict[str, int] = {}
    for cell in hopeless:
        where = f"{cell['strategy']} on {cell['world_size']} x {cell['gpu']}" if cell["strategy"] else f"one {cell['gpu']} alone"
        found[where + ("" if PRECISIONS[cell["precision"]].weights == "float32" else f", in {cell['precision']}")] = least_bytes(
            cell
        )
    return tuple(f"{what}: weights, gradients and optimizer state alone take {format_bytes(size)}" for what, size in found.items())


def least_bytes(cell: Inputs) -> int:
    """What a named model needs on each GPU whatever is done about activations."""
    precision, strategy = PRECISIONS[cell["precision"]], STRATEGIES.get(cell["strategy"])
    weights = find_model(cell["model"]).num_parameters * precision.weight_bytes
    computed = weights // 2 if precision.computes else weights
    offloaded, shards = cell["offload"] == "params", _shards(cell)
    states = 0 if offloaded else weights * (1 + OPTIMIZERS[cell["optimizer"]].state_copies) // shards
    gradients = 0 if offloaded else weights // shards
    stays_whole = strategy is not None and strategy.split is not Split.NOTHING and not strategy.reshards
    whole = computed // (cell["tp"] * cell["pp"] * cell["ep"]) if stays_whole else 0
    return states + max(gradients, whole)


def _shards(cell: Inputs) -> int:
    """Over how many GPUs the weights are split."""
    strategy = STRATEGIES.get(cell["strategy"])
    if strategy is None or strategy.split is Split.NOTHING:
        return 1
    if strategy.split is Split.WORLD:
        return int(cell["world_size"])
    others = int(cell["tp"] * cell["pp"] * cell["cp"])
    return int(cell["mesh"][-1]) * others if cell["mesh"] else min(int(cell["world_size"]), GPUS_PER_NODE * others)
