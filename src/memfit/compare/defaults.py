"""What varies if nobody said what should.

Strategies and checkpointing on several GPUs, precision and checkpointing on one; without what cannot fit whatever else is done, so
that nobody waits for it.
"""

from __future__ import annotations

from memfit.compare.cell import Inputs
from memfit.compare.grid import Axes, Grid, Subject, combinations, has_bf16, recipe_inputs
from memfit.hardware import find_gpu
from memfit.models import find_model
from memfit.models.recipe import CHECKPOINTINGS, OPTIMIZERS
from memfit.units import format_bytes

GPUS_A_NODE = 8

_STATE_COPIES = dict.fromkeys(OPTIMIZERS, 0) | {"adamw": 2, "adamw-fused": 2, "sgd-momentum": 1}
"""How often an optimizer keeps something as large as the weights."""


def model_grid(subject: Subject, axes: Axes) -> Grid:
    """The cells for a named model or a config."""
    if not all(has_bf16(gpu) for gpu in axes["gpu"]):  # all GPUs are to compute the same
        axes = {"precision": ("fp16-mixed",)} | axes
    others = [values for name, values in axes.items() if name not in ("gpu", "world_size")]
    if any(len(values) > 1 for values in others):
        return _grid(subject, axes, left_out=())
    several = max(axes["world_size"]) > 1
    strategies = _strategies(axes) if several else ("",)
    filled = {"strategy": strategies, "checkpointing": CHECKPOINTINGS} | axes
    if not several:
        filled = {"precision": ("bf16-mixed", "bf16")} | filled
    return _without_the_hopeless(subject, filled, offload_is_open="offload" not in axes)


def _strategies(axes: Axes) -> tuple[str, ...]:
    if "engine" in axes and axes["engine"] == ("ddp",):
        return ("no_shard",)
    nodes = max(axes["world_size"]) > GPUS_A_NODE
    return ("full_shard", "shard_grad_op", *(("hybrid_shard",) if nodes else ()), "no_shard")


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
        found[where + (", in bf16" if cell["precision"] == "bf16" else "")] = least_bytes(cell)
    return tuple(f"{what}: weights, gradients and optimizer state alone take {format_bytes(size)}" for what, size in found.items())


def least_bytes(cell: Inputs) -> int:
    """What a named model needs on each GPU whatever is done about activations."""
    weights = find_model(cell["model"]).num_parameters * (2 if cell["precision"] == "bf16" else 4)
    computed = weights // 2 if cell["precision"].endswith("-mixed") else weights
    states = 0 if cell["offload"] == "params" else weights * (1 + _STATE_COPIES[cell["optimizer"]]) // _shards(cell)
    gradients = 0 if cell["offload"] == "params" else weights // _shards(cell)
    whole = computed if cell["strategy"] in ("shard_grad_op", "hybrid_shard_zero2") else 0
    return states + max(gradients, whole)


def _shards(cell: Inputs) -> int:
    """Over how many GPUs the weights are split."""
    match cell["strategy"]:
        case "full_shard" | "shard_grad_op":
            return int(cell["world_size"])
        case "hybrid_shard" | "hybrid_shard_zero2":
            return int(cell["mesh"][-1]) if cell["mesh"] else min(int(cell["world_size"]), GPUS_A_NODE)
    return 1
