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

from memfit.choices import PRECISIONS, SCHEDULES, Schedule
from memfit.job import Configuration
from memfit.job.states import (
    gathered_item_bytes,
    gradient_bytes,
    is_sharded,
    numbers_of_a_rank,
    share_of_smallest_rank,
    shared_weights,
    sharing_ranks,
    state_bytes,
    whole_weight_bytes,
)
from memfit.models import ModelConfig, find_model
from memfit.plan.search.bounds.least_time import one_pass
from memfit.plan.search.bounds.shapes import LayerShape, Pass, layer_shape


def least_bytes(asked: Configuration) -> int:
    """Of a training step of a named model: the least that its allocator must be able to get."""
    if asked.recipe.pp > 1:
        return state_bytes(asked) + _in_pipeline(asked)
    gradients = gradient_bytes(asked)
    # Where a batch is computed in parts, gradients of the first are there while the others are computed.
    waiting = gradients if asked.recipe.microbatches > 1 else 0
    return state_bytes(asked) + max(gradients, waiting + whole_weight_bytes(asked) + _activations(asked))


def _whole_layer(config: ModelConfig, asked: Configuration) -> tuple[int, int]:
    """Weights of the last layer while its backward runs, where they are not whole all the time; and its gradients when that is
    over: they are whole until they are reduced. Experts with a place of their own come and go by themselves."""
    shared = shared_weights(config, config.has_experts(config.layers - 1), asked)
    precision = PRECISIONS[asked.recipe.precision]
    if asked.recipe.lora:  # only adapters have gradients
        return 0, 0
    weights = max((each.moved for each in shared), default=0) * gathered_item_bytes(asked)
    gradients = max((each.numbers for each in shared), default=0) * (2 if precision.computes else precision.weight_bytes)
    return 0 if whole_weight_bytes(asked) else weights, gradients


# -- what backward will need ------------------------------------------------------------------------------------------------------


def _activations(asked: Configuration) -> int:
    """Without a pipeline."""
    config = find_model(asked.recipe.model)
    part, _ = one_pass(asked)
    kept, within = kept_bytes(config, asked, part)
    weights, gradients = _whole_layer(config, asked)
    others = kept * (config.layers - 1) // config.layers
    at_most = max(kept + max(within + weights, _loss(config, asked, part)), others + weights + gradients)
    return _root_weights(config, asked) + at_most


def _in_pipeline(asked: Configuration) -> int:
    """On the first rank, which has most microbatches under way, or on the last, which has the loss.

    FSDP2 reduces the gradients of all microbatches at once: until then they are whole, in the type in which they are reduced; and
    from one microbatch to the next the weights stay whole, too.
    """
    config, schedule, pp = find_model(asked.recipe.model), SCHEDULES[asked.recipe.schedule], asked.recipe.pp
    part, num_passes = one_pass(asked)
    kept, within = kept_bytes(config, asked, part)
    of_a_stage = kept * share_of_smallest_rank(config, asked) / schedule.stages_a_rank
    under_way = passes_under_way(schedule, pp, num_passes)
    # The last stage keeps its output of every microbatch until the step is over: torch gives them back in one piece.
    outputs = (num_passes - 1) * part.tokens * (config.vocab // part.tp) * part.item_bytes
    least = max(of_a_stage * under_way + within + whole_weight_bytes(asked), outputs + of_a_stage + _loss(config, asked, part))
    if sharing_ranks(asked)[0] == 1 or num_passes < 2 or schedule.name not in ("1f1b", "interleaved-1f1b"):
        return int(least)
    is_settled = num_passes > (pp if schedule.stages_a_rank == 1 else 2 * pp - 1)
    # Of a few microbatches, one stage may be through with all before another one of the rank begins to go back.
    numbers = numbers_of_a_rank(config, asked) / (1 if is_settled else schedule.stages_a_rank)
    gradients = numbers * PRECISIONS[asked.recipe.precision].weight_bytes
    before_backward = gradients + of_a_stage * under_way + within + whole_weight_bytes(asked) if is_settled else 0
    after_backward = gradients + numbers * gathered_item_bytes(asked) + of_a_stage * (under_way - 1)
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


def kept_bytes(config: ModelConfig, asked: Configuration, part: Pass) -> tuple[int, int]:
    """Of one pass through all layers: what is kept from forward to backward; and what a layer that is computed again has beside
    it."""
    is_compiled = asked.recipe.compile != "none"
    if not asked.recipe.lora:
        return _kept_bytes(config.name, part, asked.recipe.checkpointing, is_compiled)
    # No frozen layer keeps what it was given, and the first layer keeps next to nothing.
    if asked.recipe.checkpointing == "none" and not is_compiled:
        shape = layer_shape(config, 0, part)
        return (config.layers - 1) * _by_products(shape) * part.item_bytes, 0
    return (config.layers - 1) * layer_shape(config, 0, part).stream * part.item_bytes, 0


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
    if checkpointing == "selective" and shape.spread:  # no policy keeps what the grouped products of experts give
        return _by_attention(shape) + shape.stream + shape.gathered
    if checkpointing == "selective":
        return _by_products(shape) + shape.stream + 2 * shape.gathered
    return _kept_in_eager_code(shape)


def _kept_in_compiled_code(shape: LayerShape) -> int:
    """What products and attention give, but for what is only added to something; and what goes into products, which the compiler
    does not compute again, since backward needs it long after. Of experts also what they give: the weights of each are trained."""
    if shape.spread:
        return _by_products(shape) + shape.gathered + 2 * shape.stream + shape.hidden + 2 * shape.spread
    return _by_products(shape) + shape.num_sums * (2 * shape.gathered + shape.hidden) // 3


def _kept_in_eager_code(shape: LayerShape) -> int:
    """Besides: what went into the norms and came out of them, and what is done to each element between the products of the MLP."""
    into_products = shape.stream + shape.gathered + 2 * shape.spread if shape.spread else 2 * shape.gathered
    return _by_products(shape) + 2 * shape.stream + into_products + (2 * shape.hidden if shape.has_gate else shape.hidden)


def _by_products(shape: LayerShape) -> int:
    return _by_attention(shape) + shape.hidden * (2 if shape.has_gate else 1)


def _by_attention(shape: LayerShape) -> int:
    """And by the products before it."""
    return 2 * shape.queries + 2 * shape.keys


def _loss(config: ModelConfig, asked: Configuration, part: Pass) -> int:
    """In float32: the logarithms of all probabilities, their gradient, and the gradient of the logits."""
    if asked.recipe.compile == "model":
        return 0
    return part.tokens * (config.vocab // part.tp) * 12


def _root_weights(config: ModelConfig, asked: Configuration) -> int:
    """The embedding and the head are gathered for forward, and stay whole until backward is over."""
    precision = PRECISIONS[asked.recipe.precision]
    if not is_sharded(asked):
        return 0
    size = 2 if precision.computes else precision.weight_bytes
    return int(config.vocab * config.dim * size // asked.recipe.tp * (1 if config.tied else 2))
