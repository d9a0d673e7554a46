"""Which cell to run, and why; and what to do if none fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from memfit.compare.cell import Cell, Figures
from memfit.units import format_bytes

SURE: Final = 0.02
"""A fit by less than this part of the memory may be the prediction's error: its smallest fit is held to 2 %."""

ROOM: Final = 0.4
"""With more than this part of the memory left, a larger batch is worth a look."""

CHEAP_FIRST: Final[dict[str, tuple[str, ...]]] = {
    "offload": ("none", "params"),
    "precision": ("bf16-mixed", "fp16-mixed", "fp32", "bf16"),
    "checkpointing": ("none", "selective", "full"),
    "strategy": ("", "no_shard", "hybrid_shard_zero2", "hybrid_shard", "shard_grad_op", "full_shard"),
}
"""What costs least comes first: traffic to the host, bits of the weights, recomputation, traffic between GPUs and between nodes."""

_KEPT_FOR_BACKWARD = ("activation", "temporary")


def choose(cells: Sequence[Cell]) -> Cell | None:
    """The cheapest to run of those that surely fit, or at least fit."""
    fitting = [cell for cell in cells if cell.fits]
    return min([cell for cell in fitting if is_sure(cell)] or fitting, key=_burden, default=None)


def is_sure(cell: Cell) -> bool:
    return cell.figures is not None and cell.figures.margin >= SURE * cell.figures.capacity


def _burden(cell: Cell) -> tuple[Any, ...]:
    """Fewest GPUs, then what costs least, then most work a step, then least memory."""
    inputs = cell.inputs
    ranks = [_rank(order, inputs.get(axis)) for axis, order in CHEAP_FIRST.items()]
    work = [-value for value in (inputs.get("batch"), inputs.get("seq")) if isinstance(value, int)]
    return (inputs["world_size"], *ranks, work, cell.smallest_fit)


def _rank(order: tuple[str, ...], value: Any) -> int:
    return order.index(value) if value in order else 0


# -- in words --------------------------------------------------------------------------------------------------------------------


def advise(cells: Sequence[Cell], varying: Sequence[str], gpu: str) -> Iterator[str]:
    """What to run on a GPU, in a few sentences."""
    here = [cell for cell in cells if cell.inputs["gpu"] == gpu and cell.figures is not None]
    chosen = choose(here)
    if chosen is not None:
        yield from _recommend(chosen, [cell for cell in here if cell.fits], varying)
    elif here:
        yield from _nothing_fits(min(here, key=lambda cell: -_figures(cell).margin), varying)


def _recommend(chosen: Cell, fitting: list[Cell], varying: Sequence[str]) -> Iterator[str]:
    figures, gpu = _figures(chosen), chosen.inputs["gpu"]
    spare, reason = format_bytes(figures.margin), _reason(fitting, varying)
    yield f"Run {describe(chosen, varying)} on {gpu}: it fits with {spare} to spare. {reason}".rstrip()
    if not is_sure(chosen):
        yield f"That is less than {SURE:.0%} of the memory, which a prediction may be off: try it before you rely on it."
    elif figures.num_alloc_retries:
        times = "once" if figures.num_alloc_retries == 1 else f"{figures.num_alloc_retries} times"
        yield f"The allocator has to give cached memory back {times}; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can help."
    if "batch" not in varying and figures.margin > ROOM * figures.capacity and "function" not in chosen.inputs:
        more = ",".join(str(chosen.inputs["batch"] * factor) for factor in (1, 2, 4))
        yield f"There is room for more: compare --batch {more}."
    if figures.peak_phase == "optimizer" and chosen.inputs.get("optimizer") == "adamw":
        yield "Its peak is in the optimizer's step: --optimizer adamw-fused needs no temporaries there."


def _reason(fitting: list[Cell], varying: Sequence[str]) -> str:
    if len(fitting) == 1:
        return "Nothing else fits." if varying else ""
    order = [words for axis, words in _WHAT_COSTS.items() if len({str(cell.inputs.get(axis)) for cell in fitting}) > 1]
    if not order:
        return f"Of the {len(fitting)} that fit it does most work with least memory."
    return f"It is the cheapest to run of the {len(fitting)} that fit: {', then '.join(order)}."


_WHAT_COSTS: Final = {
    "world_size": "fewest GPUs",
    "offload": "least traffic to host memory",
    "precision": "weights in float32",
    "checkpointing": "least recomputation",
    "strategy": "least communication",
}
"""In the order in which cells are chosen."""


def _nothing_fits(closest: Cell, varying: Sequence[str]) -> Iterator[str]:
    figures = _figures(closest)
    label, size = next(iter(figures.breakdown.items()), ("", 0))
    yield (
        f"Nothing fits on {closest.inputs['gpu']}. Closest comes {describe(closest, varying)}: "
        f"{format_bytes(-figures.margin)} are missing. At its peak, in {figures.peak_phase}, {label} takes {format_bytes(size)}."
    )
    ways = [*_ways_out(closest, label), *([f"--gpu {figures.least_gpu}"] if figures.least_gpu else [])]
    if ways:
        yield f"Try {', or '.join(ways)}."


def _ways_out(cell: Cell, label: str) -> Iterator[str]:
    """For a named model: what reduces the largest part of the peak."""
    inputs = cell.inputs
    if "function" in inputs:
        return
    if any(word in label for word in _KEPT_FOR_BACKWARD):
        if inputs["checkpointing"] != "full":
            yield "--checkpointing full"
        yield f"--batch {inputs['batch'] // 2}" if inputs["batch"] > 1 else f"--seq {inputs['seq'] // 2}"
    if inputs["strategy"] not in ("full_shard", "hybrid_shard"):
        yield "--strategy full_shard"
    yield f"--world-size {2 * inputs['world_size']}"
    if inputs["offload"] == "none":
        yield "--offload params"


def describe(cell: Cell, varying: Sequence[str]) -> str:
    """By what tells it from the others."""
    what = in_words("strategy", cell.inputs["strategy"]) if "strategy" in varying else "it"
    others = [in_words(axis, cell.inputs.get(axis)) for axis in varying if axis not in ("gpu", "strategy")]
    return f"{what} with {', '.join(others)}" if others else what


def in_words(axis: str, value: Any) -> str:
    """``no checkpointing``, ``8 GPUs``, ``batch 4``."""
    match axis, value:
        case ("strategy" | "engine", _):
            return value or "no sharding"
        case ("checkpointing" | "prefetch", _):
            return f"{'no' if value == 'none' else value} {axis}"
        case ("offload", _):
            return "no offload" if value == "none" else f"{value} offloaded"
        case ("precision" | "optimizer", _):
            return str(value)
        case ("world_size", _):
            return f"{value} GPUs" if value > 1 else "1 GPU"
        case ("mesh", _):
            return f"mesh {'x'.join(map(str, value))}" if value else "the default mesh"
    return f"{axis} {value}"


def _figures(cell: Cell) -> Figures:
    assert cell.figures is not None
    return cell.figures
