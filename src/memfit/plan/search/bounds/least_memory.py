"""What no configuration can do without: bytes of a GPU's allocator, whatever else it needs.

::

    weights, optimizer state          always, in shards
    + the larger of
        gradients                     when backward is over
        whole weights                 where a strategy does not give them back between forward and backward
          + what backward will need   of every layer, by the kind of checkpointing; of every microbatch that is under way
          + the loss, or one layer    computed again, or its gradients before they are reduced

A planner leaves out whatever cannot fit, so that this must be below what ``memfit.predict`` says:
``tests/plan/search/test_bounds.py`` compares.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from memfit.choices import OPTIMIZERS, PRECISIONS, SCHEDULES, STRATEGIES, Schedule, Split, layers_of_stages
from memfit.models import ModelConfig, find_model
from memfit.plan.search.bounds.least_time import one_pass
from memfit.plan.search.bounds.shapes import LayerShape, Pass, kinds_of_layers, layer_shape
from memfit.plan.search.bounds.sharing import is_sharded, numbers_of_a_gpu, shared_weights, sharing_ranks

Inputs = dict[str, Any]


def state_bytes(inputs: Inputs) -> int:
    """Weights and optimizer state of one GPU."""
    if inputs["offload"] == "params":
        return 0
    return _weights(inputs) * (1 + OPTIMIZERS[inputs["optimizer"]].state_copies)


def least_bytes(inputs: Inputs) -> int:
    """Of a training step of a named model: ``inputs`` are those of a cell of ``memfit.compare``."""
    if inputs["pp"] > 1:
        return state_bytes(inputs) + _in_pipeline(inputs)
    gradients = 0 if inputs["offload"] == "params" else _weights(inputs)
    # Where a batch is computed in parts, gradients of the first are there while the others are computed.
    waiting = gradients if inputs["microbatches"] > 1 else 0
    return state_bytes(inputs) + max(gradients, waiting + _whole_weights(inputs) + _activations(inputs))


def _share_of_smallest_rank(config: ModelConfig, inputs: Inputs) -> float:
    """Of all layers, what each rank of a pipeline has at least."""
    if inputs["pp"] == 1:
        return 1.0
    stages = SCHEDULES[inputs["schedule"]].stages_a_rank
    return min(layers_of_stages(config.layers, inputs["pp"] * stages)) * stages / config.layers


def _weights(inputs: Inputs) -> int:
    """Of one GPU, in the type in which they are kept."""
    return int(numbers_of_a_gpu(inputs) * PRECISIONS[inputs["precision"]].weight_bytes)


def _whole_weights(inputs: Inputs) -> int:
    """What is gathered in forward and kept for backward."""
    strategy = STRATEGIES.get(inputs["strategy"])
    if strategy is None or strategy.split is Split.NOTHING or strategy.reshards or sharing_ranks(inputs)[0] == 1:
        return 0
    return int(_numbers(find_model(inputs["model"]), inputs) * _gathered_item(inputs))


def _numbers(config: ModelConfig, inputs: Inputs) -> float:
    """Of the layers of a rank, not shared by data parallelism. Experts that are spread stay so."""
    numbers = sum(count * _of_layer(config, has_experts, inputs) for has_experts, count in kinds_of_layers(config).items())
    return numbers * _share_of_smallest_rank(config, inputs)


def _whole_layer(config: ModelConfig, inputs: Inputs) -> tuple[int, int]:
    """Weights of the last layer while its backward runs, where they are not whole all the time; and its gradients when that is
    over: they are whole until they are reduced. Experts with a place of their own come and go by themselves."""
    shared = shared_weights(config, config.has_experts(config.layers - 1), inputs)
    precision = PRECISIONS[inputs["precision"]]
    weights = max((each.moved for each in shared), default=0) * _gathered_item(inputs)
    gradients = max((each.numbers for each in shared), default=0) * (2 if precision.computes else precision.weight_bytes)
    return 0 if _whole_weights(inputs) else weights, gradients


def _of_layer(config: ModelConfig, has_experts: bool, inputs: Inputs) -> int:
    return sum(shared.numbers for shared in shared_weights(config, has_experts, inputs))


def _gathered_item(inputs: Inputs) -> int:
    """Bytes of a weight while it is whole."""
    precision = PRECISIONS[inputs["precision"]]
    return 1 if inputs["float8"] != "none" else 2 if precision.computes else precision.weight_bytes


# -- what backward will need ------------------------------------------------------------------------------------------------------


def _activations(inputs: Inputs) -> int:
    """Without a pipeline."""
    config = find_model(inputs["model"])
    part, _ = one_pass(inputs)
    kept, within = kept_bytes(config, inputs, part)
    weights, gradients = _whole_layer(config, inputs)
    others = kept * (config.layers - 1) // config.layers
    at_most = max(kept + max(within + weights, _loss(config, inputs, part)), others + weights + gradients)
    return _root_weights(config, inputs) + at_most


def _in_pipeline(inputs: Inputs) -> int:
    """On the first rank, which has most microbatches under way, or on the last, which has the loss.

    FSDP2 reduces the gradients of all microbatches at once: until then they are whole, in the type in which they are reduced; and
    from one microbatch to the next the weights stay whole, too.
    """
    config, schedule, pp = find_model(inputs["model"]), SCHEDULES[inputs["schedule"]], inputs["pp"]
    part, num_passes = one_pass(inputs)
    kept, within = kept_bytes(config, inputs, part)
    of_a_stage = kept * _share_of_smallest_rank(config, inputs) / schedule.stages_a_rank
    under_way = passes_under_way(schedule, pp, num_passes)
    # The last stage keeps its output of every microbatch until the step is over: torch gives them back in one piece.
    outputs = (num_passes - 1) * part.tokens * (config.vocab // part.tp) * part.item_bytes
    least = max(of_a_stage * under_way + within + _whole_weights(inputs), outputs + of_a_stage + _loss(config, inputs, part))
    is_settled = num_passes > (pp if schedule.stages_a_rank == 1 else 2 * pp - 1)
    if sharing_ranks(inputs)[0] == 1 or not is_settled or schedule.name not in ("1f1b", "interleaved-1f1b"):
        return int(least)
    numbers = _numbers(config, inputs)
    gradients = numbers * PRECISIONS[inputs["precision"]].weight_bytes
    before_backward = gradients + of_a_stage * under_way + within + _whole_weights(inputs)
    after_backward = gradients + numbers * _gathered_item(inputs) + of_a_stage * (under_way - 1)
    return int(max(least, before_backward, after_backward))


def passes_under_way(schedule: Schedule, pp: int, num_microbatches: int) -> int:
    """How many microbatches the stages of the first rank have sent on and not got back, at the most; each stage counts."""
    if schedule.name == "gpipe":
        return num_microbatches
    if schedule.name == "1f1b":
        return min(num_microbatches, pp)
    if schedule.name == "interleaved-1f1b":
        a_round = num_microbatches // max(1, num_microbatches // pp)
        ahead = (schedule.stages_a_rank - 1) * a_round + 2 * (pp - 1) + 1
        return min(num_microbatches * schedule.stages_a_rank, ahead)
    return 1  # at least


def kept_bytes(config: ModelConfig, inputs: Inputs, part: Pass) -> tuple[int, int]:
    """Of one pass through all layers: what is kept from forward to backward; and what a layer that is computed again has beside
    it."""
    return _kept_bytes(config.name, part, inputs["checkpointing"], inputs["compile"] != "none")


@lru_cache(maxsize=4096)
def _kept_bytes(model: str, part: Pass, checkpointing: str, is_compiled: bool) -> tuple[int, int]:
    config = find_model(model)
    shapes = [layer_shape(config, layer, part) for layer in {0, config.layers - 1}]
    smallest = min(shapes, key=lambda shape: _kept(shape, checkpointing, is_compiled))
    kept = config.layers * _kept(smallest, checkpointing, is_compiled) * part.item_bytes
    if checkpointing != "full" and not (checkpointing == "selective" and is_compiled):
        return kept, 0
    # The layer that is computed again already has its input.
    by_layer = _by_products if is_compiled else _kept_in_eager_code
    again = min(by_layer(shape) - shape.stream for shape in shapes) * part.item_bytes
    return kept, again


def _kept(shape: LayerShape, checkpointing: str, is_compiled: bool) -> int:
    """Numbers that a layer keeps."""
    if checkpointing == "full" or (checkpointing == "selective" and is_compiled):
        return shape.stream  # a compiled block is computed again as a whole: no policy sees the operators in it
    if is_compiled:
        return _kept_in_compiled_code(shape)
    if checkpointing == "selective":
        return _by_products(shape) + shape.stream + 2 * shape.gathered
    return _kept_in_eager_code(shape)


def _kept_in_compiled_code(shape: LayerShape) -> int:
    """What products and attention give, but for what is only added to something; and what goes into products, which the compiler
    does not compute again, since backward needs it long after."""
    return _by_products(shape) + shape.num_sums * (2 * shape.gathered + shape.hidden) // 3


def _kept_in_eager_code(shape: LayerShape) -> int:
    """Besides: what went into the norms and came out of them, and what is done to each element between the products of the MLP."""
    return _by_products(shape) + 2 * shape.stream + 2 * shape.gathered + (2 * shape.hidden if shape.has_gate else shape.hidden)


def _by_products(shape: LayerShape) -> int:
    return 2 * shape.queries + 2 * shape.keys + shape.hidden * (2 if shape.has_gate else 1)


def _loss(config: ModelConfig, inputs: Inputs, part: Pass) -> int:
    """In float32: the logarithms of all probabilities, their gradient, and the gradient of the logits."""
    if inputs["compile"] == "model":
        return 0
    return part.tokens * (config.vocab // part.tp) * 12


def _root_weights(config: ModelConfig, inputs: Inputs) -> int:
    """The embedding and the head are gathered for forward, and stay whole until backward is over."""
    precision = PRECISIONS[inputs["precision"]]
    if not is_sharded(inputs):
        return 0
    size = 2 if precision.computes else precision.weight_bytes
    return int(config.vocab * config.dim * size // inputs["tp"] * (1 if config.tied else 2))
