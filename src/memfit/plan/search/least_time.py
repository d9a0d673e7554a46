"""What no configuration can beat: seconds of a step by its arithmetic, its memory, its links and its pipeline.

::

    on the stream that computes     products and attention at the clock's own prices, the least bytes of everything else, and the
                                    collectives of tensor parallelism, for which it waits
    on the links                    gathering weights and reducing gradients, whatever they overlap with
    in a pipeline                   the same for every microbatch, and the fewest layers of a stage for every stage to be filled

    a step takes at least the longer of the first two

A planner leaves out whatever could not be faster than what it has, so each of these must be below what ``memfit.predict`` says:
``tests/plan/search/test_bounds.py`` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from memfit.choices import OPTIMIZERS, PRECISIONS, SCHEDULES, STRATEGIES, Split, layers_of_stages
from memfit.hardware import GPUS_PER_NODE, find_gpu
from memfit.models import ModelConfig, find_model
from memfit.plan.search.shapes import LayerShape, Pass, Product, head_product, kinds_of_layers, layer_shape, weights_of_layer
from memfit.timing import Chip, Interconnect, chip_of, parse_interconnect, usual_interconnect
from memfit.timing.collectives import all_gather_seconds, reduce_scatter_seconds
from memfit.timing.operators.attention import BACKWARD_FLOPS, CUDNN, price_attention
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.products import product_cost

Inputs = dict[str, Any]

_FASTEST_ATTENTION = max(*CUDNN.forward, *CUDNN.backward)
"""Of the GPU's peak, for any kernel and any size of a head."""


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """One layer, one pass."""

    forward: float
    backward: float
    recompute: float
    """What full checkpointing computes again: all but the last product, whose result nobody needs."""


def least_seconds(inputs: Inputs, interconnect: str = "") -> float:
    """Of a training step of a named model: ``inputs`` are those of a cell of ``memfit.compare``."""
    config, chip = find_model(inputs["model"]), chip_of(find_gpu(inputs["gpu"]))
    links = parse_interconnect(interconnect) if interconnect else usual_interconnect(chip)
    part, num_passes = one_pass(inputs)
    layers = _layer_seconds(config, inputs, part, chip, links)
    computing = _computing(config, inputs, part, num_passes, layers, chip) + _copying_out(config, inputs, num_passes, chip)
    return max(computing, _gathering(config, inputs, num_passes, links))


def one_pass(inputs: Inputs) -> tuple[Pass, int]:
    """What goes through the GPU at once, and how often in a step."""
    num_passes = max(1, inputs["microbatches"])
    precision = PRECISIONS[inputs["precision"]]
    return (
        Pass(
            sequences=inputs["batch"] // num_passes,
            seq=inputs["seq"],
            tp=inputs["tp"],
            cp=inputs["cp"],
            item_bytes=2 if precision.computes or precision.weight_bytes == 2 else 4,
        ),
        num_passes,
    )


# -- the stream that computes -----------------------------------------------------------------------------------------------------


def _computing(config: ModelConfig, inputs: Inputs, part: Pass, num_passes: int, layers: list[LayerSeconds], chip: Chip) -> float:
    # No policy sees the operators of a compiled block: it is computed again as a whole.
    again = inputs["checkpointing"] == "full" or (inputs["checkpointing"] == "selective" and inputs["compile"] != "none")
    per_layer = [layer.forward + layer.backward + (layer.recompute if again else 0.0) for layer in layers]
    updating = _updating(config, inputs, chip)
    pp = inputs["pp"]
    if pp == 1:
        return num_passes * (sum(per_layer) + _head(config, inputs, part, chip)) + updating
    return _in_pipeline(config, inputs, num_passes, min(per_layer), _head(config, inputs, part, chip)) + updating


def _in_pipeline(config: ModelConfig, inputs: Inputs, num_passes: int, per_layer: float, head: float) -> float:
    """At least what the rank with most to do needs alone, and what equal ranks with the least to do would need together: the first
    has to fill the pipeline, the last to empty it."""
    schedule = SCHEDULES[inputs["schedule"]]
    pp: int = inputs["pp"]
    layers = layers_of_stages(config.layers, pp * schedule.stages_a_rank)
    ranks = [sum(layers[stage] for stage in schedule.stages_of(rank, pp)) * per_layer for rank in range(pp)]
    last = next(rank for rank in range(pp) if len(layers) - 1 in schedule.stages_of(rank, pp))
    ranks[last] += head
    has_bubble = schedule.name in ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs")
    rounds = num_passes + (pp - 1) / schedule.stages_a_rank * has_bubble
    return max(num_passes * max(ranks), rounds * min(layers) * schedule.stages_a_rank * per_layer)


def _layer_seconds(config: ModelConfig, inputs: Inputs, part: Pass, chip: Chip, links: Interconnect) -> list[LayerSeconds]:
    """One for each layer."""
    dtype, is_compiled = _product_type(inputs), inputs["compile"] != "none"
    found = []
    for has_experts, count in kinds_of_layers(config).items():
        found += [_one_layer(config.name, part, chip, links, dtype, is_compiled, has_experts)] * count
    return found


def _product_type(inputs: Inputs) -> str:
    if inputs["float8"] != "none":
        return "f8"
    precision = PRECISIONS[inputs["precision"]]
    name = precision.computes or precision.weights
    return {"bfloat16": "bf16", "float16": "f16", "float32": "tf32"}[name]


@lru_cache(maxsize=4096)
def _one_layer(
    model: str, part: Pass, chip: Chip, links: Interconnect, dtype: str, is_compiled: bool, has_experts: bool
) -> LayerSeconds:
    config = find_model(model)
    shape = layer_shape(config, config.layers - 1 if has_experts else 0, part)
    forward = [_product_seconds(product, chip, dtype, part.item_bytes) for product in shape.products]
    backward = [_product_seconds(each, chip, dtype, part.item_bytes) for product in shape.products for each in product.backward]
    attention, attention_backward = _attention(shape, part, chip, dtype)
    elements = _Elements.of(shape, part, chip, is_compiled=is_compiled)
    gathers = _gather_and_scatter(shape, part, links)
    # Attention and MLP each gather the sequence and scatter their result; experts are given each GPU's own part of it.
    collectives = gathers * (1 if has_experts else 2)
    return LayerSeconds(
        forward=sum(forward) + attention + elements.forward + collectives,
        backward=sum(backward) + attention_backward + elements.backward + collectives,
        recompute=sum(forward[:-1]) + attention + elements.recompute + collectives / 2,
    )


def _product_seconds(product: Product, chip: Chip, dtype: str, item_bytes: int) -> float:
    """At the clock's price; where rows do not begin at good addresses the clock's is higher. Of the smaller the bytes are those of
    16 bits."""
    if not product.rows * product.inner * product.columns:
        return 0.0
    moved = product.rows * product.inner + product.inner * product.columns + product.rows * product.columns
    size = 1 if dtype == "f8" else item_bytes
    return product_cost("mm", chip, dtype, 1, product.rows, product.columns, product.inner, float(moved * size)).seconds


def _attention(shape: LayerShape, part: Pass, chip: Chip, dtype: str) -> tuple[float, float]:
    """Forward and backward, by the fastest kernel: the clock's price where one call does all of it; where a ring of GPUs shares it,
    half of all pairs at the kernel's best rate, since no position looks ahead."""
    kind = "bf16" if dtype in ("f8", "tf32") else dtype
    if part.cp == 1 and dtype != "tf32":
        query = Operand(kind, (part.sequences, shape.heads, part.seq, shape.head_dim))
        call = ("_scaled_dot_product_cudnn_attention", (query, query, query, None, True, 0.0, True), ())
        forward = price_attention(Call(*call), chip).seconds
        given = (query, query, query, query, query, None, None, None, None, 0, 0, 0, 0, 0.0, True)
        return forward, price_attention(Call(f"{call[0]}_backward", given, ()), chip).seconds
    flops = 2.0 * part.sequences * shape.heads * (part.seq / part.cp) * part.seq * 2 * shape.head_dim / 2
    forward = flops / (chip.product_flops(kind) * _FASTEST_ATTENTION)
    return forward, BACKWARD_FLOPS * forward


@dataclass(frozen=True)
class _Elements:
    """What is done to every element, by the bytes that the memory has to move."""

    forward: float
    backward: float
    recompute: float

    @classmethod
    def of(cls, shape: LayerShape, part: Pass, chip: Chip, *, is_compiled: bool) -> _Elements:
        if is_compiled:  # fused with one another, how is the compiler's choice
            return cls(0.0, 0.0, 0.0)

        def moving(*tensors: tuple[int, float]) -> float:
            """(numbers, how often they are read or written), at the memory's rate; what the cache can hold costs nothing."""
            sizes = ((numbers * part.item_bytes, times) for numbers, times in tensors)
            return sum(max(0.0, size - chip.cache_bytes) * times for size, times in sizes) / chip.memory_bandwidth

        gate = (shape.hidden, 5 if shape.has_gate else 2)  # silu reads and writes, the product reads two and writes one
        norms, sums = (shape.stream, 4), (shape.stream, 6)
        # Turning by the position: two products, a sign, a copy of both halves and a sum.
        turned = ((shape.queries, 8), (shape.keys, 8)) if shape.is_turned else ()
        turned_back = ((shape.queries, 6), (shape.keys, 6)) if shape.is_turned else ()
        # Gradients of what several products were given, and of what also went past attention and MLP, are added up.
        added = ((shape.gathered, 3 * shape.num_sums), (shape.stream, 6))
        backward = moving((shape.hidden, 9 if shape.has_gate else 3), (shape.stream, 6), *turned_back, *added)
        return cls(moving(gate, norms, sums, *turned), backward, moving(gate, norms, (shape.stream, 3), *turned))


def _gather_and_scatter(shape: LayerShape, part: Pass, links: Interconnect) -> float:
    """Of the sequence, between the GPUs that share a layer."""
    size = float(shape.gathered * part.item_bytes)
    return all_gather_seconds(size, part.tp, links) + reduce_scatter_seconds(size, part.tp, links)


def _head(config: ModelConfig, inputs: Inputs, part: Pass, chip: Chip) -> float:
    """The last product, and the loss in float32."""
    product, dtype = head_product(config, part), _product_type(inputs)
    dtype = "bf16" if dtype == "f8" else dtype
    products = sum(_product_seconds(each, chip, dtype, part.item_bytes) for each in (product, *product.backward))
    if inputs["compile"] == "model":
        return products
    logits = max(0.0, 4.0 * product.rows * product.columns - chip.cache_bytes)
    return products + 4 * logits / chip.memory_bandwidth


def _updating(config: ModelConfig, inputs: Inputs, chip: Chip) -> float:
    """The optimizer reads gradients, and reads and writes weights and what it keeps of them."""
    if inputs["offload"] != "none":
        return 0.0
    size = config.num_parameters * PRECISIONS[inputs["precision"]].weight_bytes / num_shards(inputs)
    copies = OPTIMIZERS[inputs["optimizer"]].state_copies
    return max(0.0, size - chip.cache_bytes) * (3 + 2 * copies) / chip.memory_bandwidth


# -- links ------------------------------------------------------------------------------------------------------------------------


def _gathering(config: ModelConfig, inputs: Inputs, num_passes: int, links: Interconnect) -> float:
    """Weights are gathered and gradients reduced layer by layer; one group of GPUs does one thing at a time."""
    if not _is_sharded(inputs):
        return 0.0
    ranks, are_adjacent = sharing_ranks(inputs)
    rounds, gathers = _rounds(inputs, num_passes)
    total = 0.0
    for numbers, count in _sizes(config, inputs["tp"]):
        gather = all_gather_seconds(float(numbers * _gathered_bytes(inputs)), ranks, links, are_adjacent)
        reduce = reduce_scatter_seconds(float(numbers * PRECISIONS[inputs["precision"]].weight_bytes), ranks, links, are_adjacent)
        total += count * (gathers * gather + rounds * reduce)
    # Backward needs the last layer's weights while they are still there.
    return float(total * max(0, config.layers - 1) / config.layers / inputs["pp"])


def _copying_out(config: ModelConfig, inputs: Inputs, num_passes: int, chip: Chip) -> float:
    """What was gathered lies rank by rank, and is copied to where weights are whole: by the stream that computes."""
    if not _is_sharded(inputs):
        return 0.0
    _, gathers = _rounds(inputs, num_passes)
    sizes = _sizes(config, inputs["tp"])
    moved = sum(count * max(0, numbers * _gathered_bytes(inputs) - chip.cache_bytes) for numbers, count in sizes)
    return float(gathers * 2 * moved / chip.memory_bandwidth * max(0, config.layers - 1) / config.layers / inputs["pp"])


def _is_sharded(inputs: Inputs) -> bool:
    """Do GPUs gather weights from one another, as FSDP2 does it?"""
    return sharing_ranks(inputs)[0] > 1 and inputs["engine"] == "fsdp2"


def _rounds(inputs: Inputs, num_passes: int) -> tuple[int, int]:
    """How often a step reduces gradients and gathers weights. A pipeline reduces once, and gathers once where it keeps weights
    whole from one microbatch to the next."""
    if inputs["pp"] > 1:
        gives_back = STRATEGIES[inputs["strategy"]].reshards and SCHEDULES[inputs["schedule"]].stages_a_rank == 1
        return 1, num_passes if gives_back else 1
    return num_passes, num_passes * (2 if STRATEGIES[inputs["strategy"]].reshards else 1)


def _gathered_bytes(inputs: Inputs) -> int:
    """Of one number of the weights."""
    precision = PRECISIONS[inputs["precision"]]
    if inputs["float8"] != "none":
        return 1
    return 2 if precision.computes or precision.weight_bytes == 2 else 4


def _sizes(config: ModelConfig, tp: int) -> list[tuple[int, int]]:
    """(numbers of a layer, how many layers have so many), where there are any to gather."""
    counts = {weights_of_layer(config, has_experts, tp): count for has_experts, count in kinds_of_layers(config).items()}
    return [(numbers, count) for numbers, count in counts.items() if numbers]


def sharing_ranks(inputs: Inputs) -> tuple[int, bool]:
    """How many GPUs share weights, gradients and optimizer state beside tp and pp; and do they follow one another?"""
    strategy = STRATEGIES.get(inputs["strategy"])
    if strategy is None or strategy.split is Split.NOTHING:
        return 1, True
    group = inputs["world_size"] // (inputs["tp"] * inputs["pp"])
    if strategy.split is Split.NODE:
        usual = max(1, GPUS_PER_NODE // inputs["tp"])
        group = min(group, int(inputs["mesh"][-1]) * inputs["cp"] if inputs["mesh"] else usual)
    return group, inputs["tp"] == 1 or group * inputs["tp"] <= GPUS_PER_NODE


def num_shards(inputs: Inputs) -> int:
    """Into how many parts weights and optimizer state are cut."""
    strategy = STRATEGIES.get(inputs["strategy"])
    shared = int(inputs["tp"] * inputs["pp"])
    if strategy is not None and strategy.split is Split.WORLD:
        return int(inputs["world_size"])
    return shared * sharing_ranks(inputs)[0]
