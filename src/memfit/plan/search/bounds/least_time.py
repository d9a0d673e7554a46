"""What no configuration can beat: seconds of a step by its arithmetic, its memory, its links and its pipeline.

::

    on the stream that computes     the layers (layer_time.py), the head and the loss, copies of what was gathered, the optimizer
      + what it has to wait for     the first weights of each pass come before anything can be computed, the last gradients go after
                                    all of it
    on the links                    gathering weights and reducing gradients, whatever they overlap with
    in a pipeline                   the same for every microbatch, with gradients that are added up; the first microbatch has to
                                    reach a rank, and the last one to go back from it; gradients are reduced when all that is done

    forward takes at least the longer of the stream and the links, and so does what comes after it

A planner leaves out whatever could not be faster than what it has, so each of these must be below what ``memfit.predict`` says:
``tests/plan/search/test_bounds.py`` compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from memfit.choices import OPTIMIZERS, PRECISIONS, SCHEDULES, layers_of_stages
from memfit.hardware import Gpu, find_gpu
from memfit.job import Configuration
from memfit.job.states import shared_weights, trained_numbers_of_a_gpu
from memfit.models import ModelConfig, find_model
from memfit.plan.search.bounds.layer_time import LayerKind, layer_seconds, product_seconds
from memfit.plan.search.bounds.shapes import Pass, head_product
from memfit.plan.search.bounds.sharing import (
    copies_of,
    gather_seconds,
    gathers,
    reduce_seconds,
    root_of,
    seconds_of_call,
    seconds_of_calls,
)
from memfit.plan.search.bounds.turns import Layers, around_a_rank, in_turns
from memfit.timing import Interconnect, parse_interconnect, usual_interconnect
from memfit.timing.operators.calls import Call, Operand


def least_seconds(asked: Configuration) -> float:
    """Of a training step of a named model: seconds that no way to run it can beat."""
    config, chip = find_model(asked.recipe.model), find_gpu(asked.gpu)
    links = parse_interconnect(asked.options.interconnect) if asked.options.interconnect else usual_interconnect(chip)
    part, num_passes = one_pass(asked)
    layers = _layers(config, asked, part, chip, links)
    head, updating = _head(config, asked, part, chip), _updating(asked, chip)
    if asked.recipe.pp > 1:
        within = _in_pipeline(config, asked, num_passes, layers, sum(head), chip, links)
        # Gradients are reduced once, and weights gathered once where a rank keeps them whole from one microbatch to the next.
        gives_back = gathers(asked, True) and SCHEDULES[asked.recipe.schedule].stages_a_rank == 1
        links_alone = _on_links(config, asked, links, num_passes if gives_back else 1, 1) / asked.recipe.pp
        return max(within, links_alone) + updating
    one_pass_seconds = 0.0
    turns = in_turns(config, asked, layers, head, chip, links)
    for is_back in (False, True):
        computing = sum(layer.num_computed * layer.seconds_of(is_back) for layer in layers) + head[is_back]
        computing += _copying(config, asked, chip, is_back) + _waiting(config, asked, links, is_back)
        num_reduced = int(is_back and not asked.recipe.lora)
        on_links = _on_links(config, asked, links, int(gathers(asked, is_back)), num_reduced)
        one_pass_seconds += max(computing, on_links, turns[is_back])
    return num_passes * one_pass_seconds + updating


def one_pass(asked: Configuration) -> tuple[Pass, int]:
    """What goes through the GPU at once, and how often in a step."""
    num_passes = max(1, asked.recipe.microbatches)
    precision = PRECISIONS[asked.recipe.precision]
    return (
        Pass(
            sequences=asked.recipe.batch // num_passes,
            seq=asked.recipe.seq,
            tp=asked.recipe.tp,
            cp=asked.recipe.cp,
            item_bytes=2 if precision.computes or precision.weight_bytes == 2 else 4,
        ),
        num_passes,
    )


# -- the stream that computes -----------------------------------------------------------------------------------------------------


def _layers(config: ModelConfig, asked: Configuration, part: Pass, chip: Gpu, links: Interconnect) -> list[Layers]:
    """In the order of the model: dense ones before those with experts."""
    # Torch takes cuDNN's kernels where they are the fastest, and never on older GPUs.
    is_old = find_gpu(asked.gpu).arch.startswith(("sm_7", "sm_8"))
    found = []
    for has_experts, count in config.kinds_of_layers().items():
        kind = LayerKind(
            model=config.name,
            has_experts=has_experts,
            part=part,
            ep=asked.recipe.ep,
            dtype=_product_type(asked),
            compile=asked.recipe.compile,
            checkpointing=asked.recipe.checkpointing,
            attention="flash" if is_old else "cudnn",
            is_frozen=asked.recipe.lora > 0,
        )
        # What is before the first adapter has no backward.
        num_computed = count - 1 if asked.recipe.lora else count
        seconds = layer_seconds(kind, chip, links)
        found.append(Layers(count=count, num_computed=num_computed, has_experts=has_experts, seconds=seconds))
    return found


def _product_type(asked: Configuration) -> str:
    if asked.recipe.float8 != "none":
        return "f8"
    precision = PRECISIONS[asked.recipe.precision]
    name = precision.computes or precision.weights
    return {"bfloat16": "bf16", "float16": "f16", "float32": "tf32"}[name]


def _head(config: ModelConfig, asked: Configuration, part: Pass, chip: Gpu) -> tuple[float, float]:
    """The last product, and the loss in float32; forward, and going back."""
    product, dtype = head_product(config, part), _product_type(asked)
    dtype = "bf16" if dtype == "f8" else dtype
    gradients = product.backward[: 1 if asked.recipe.lora else 2]
    forward = product_seconds(product, chip, dtype, part.item_bytes)
    backward = sum(product_seconds(each, chip, dtype, part.item_bytes) for each in gradients)
    if asked.recipe.compile == "model":
        return forward, backward
    logits = Operand("f32", (product.rows, product.columns))
    if part.tp > 1:  # on parts of the vocabulary: operator by operator
        short, column = Operand("bf16" if part.item_bytes == 2 else "f32", logits.shape), Operand("f32", (product.rows, 1))
        minus = Call("sub", (logits, column), (logits,))
        exp = Call("exp", (logits,), (logits,))
        widened = [Call("_to_copy", (short,), (logits,))] * (part.item_bytes == 2)
        narrowed = [Call("_to_copy", (logits,), (short,))] * (part.item_bytes == 2)
        back = [exp, Call("zeros_like", (logits,), (logits,)), Call("mul", (logits, column), (logits,))]
        return forward + seconds_of_calls([*widened, minus, exp, minus], chip), backward + seconds_of_calls(
            [*back, *narrowed], chip
        )
    calls = [Call("_log_softmax", (logits,), (logits,))]
    calls_back = [Call("_log_softmax_backward_data", (logits, logits), (logits,)), Call("nll_loss_backward", (), (logits,))]
    if part.item_bytes == 2:
        short = Operand("bf16", logits.shape)
        calls.append(Call("_to_copy", (short,), (logits,)))
        calls_back.append(Call("_to_copy", (logits,), (short,)))
    return forward + seconds_of_calls(calls, chip), backward + seconds_of_calls(calls_back, chip)


def _updating(asked: Configuration, chip: Gpu) -> float:
    """Gradients are clipped; the optimizer reads them, and reads and writes weights and what it keeps of them: one operator after
    the other, where torch's loops over lists do it."""
    if asked.recipe.offload != "none":
        return 0.0
    numbers, row = trained_numbers_of_a_gpu(asked), OPTIMIZERS[asked.recipe.optimizer]
    size = PRECISIONS[asked.recipe.precision].weight_bytes
    if asked.recipe.optimizer in _BY_LISTS:
        own = Operand("f32" if size == 4 else "bf16", (int(numbers),))
        return seconds_of_calls([Call(name, ((own,) * count,), (own,)) for name, count in _BY_LISTS[asked.recipe.optimizer]], chip)
    moved = numbers * (3 * size + 2 * row.state_copies * (row.state_bytes or size))
    if row.state_bytes:
        moved /= 2  # a prediction counts less of it than the kernel moves
    return float(moved * max(0.0, 1 - chip.last_level_cache_bytes / max(1.0, numbers * size)) / chip.memory_bandwidth)


_ADAM: Final = (
    *(("_foreach_mul_", 1), ("_foreach_lerp_", 2), ("_foreach_mul_", 1), ("_foreach_addcmul_", 2)),
    *(("_foreach_sqrt", 1), ("_foreach_div_", 1), ("_foreach_add_", 1), ("_foreach_addcdiv_", 3)),
)
_BY_LISTS: Final = {"adamw": _ADAM}
"""By optimizer: the operators, and how many lists each reads. The first one clips."""


# -- pipelines --------------------------------------------------------------------------------------------------------------------


def _in_pipeline(
    config: ModelConfig,
    asked: Configuration,
    num_passes: int,
    layers: Sequence[Layers],
    head: float,
    chip: Gpu,
    links: Interconnect,
) -> float:
    schedule = SCHEDULES[asked.recipe.schedule]
    pp: int = asked.recipe.pp
    stages = layers_of_stages(config.layers, pp * schedule.stages_a_rank)
    kinds = [shared_weights(config, each.has_experts, asked) for each in layers]
    numbers = min(sum(shared.numbers for shared in kind) for kind in kinds)
    one_layer = min(each.seconds.forward + each.going_back for each in layers) + _adding_up(asked, numbers, num_passes, chip)
    ranks = [sum(stages[stage] for stage in schedule.stages_of(rank, pp)) for rank in range(pp)]
    seconds = [count * one_layer for count in ranks]
    seconds[next(rank for rank in range(pp) if len(stages) - 1 in schedule.stages_of(rank, pp))] += head
    within = pipeline_least_seconds(seconds, num_passes, schedule.stages_a_rank, has_bubble=schedule.name in WITH_BUBBLE)
    around = min(around_a_rank(config, asked, each, schedule.stages_a_rank, min(ranks), chip, links) for each in layers)
    return within + around


WITH_BUBBLE = ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs")


def pipeline_least_seconds(ranks: Sequence[float], num_passes: int, stages_a_rank: int, *, has_bubble: bool) -> float:
    """``ranks`` has what each rank needs for one microbatch, in all of its stages. Each does its work for all of them; the first
    one has to come through all ranks before it, and the last one to go back through them. And equal ranks with the least to do
    would need as long as their bubble says."""
    if not has_bubble:
        return num_passes * max(ranks)
    one_by_one = max(num_passes * mine + sum(ranks[:rank]) / stages_a_rank for rank, mine in enumerate(ranks))
    return max(one_by_one, (num_passes + (len(ranks) - 1) / stages_a_rank) * min(ranks))


def _adding_up(asked: Configuration, numbers: int, num_passes: int, chip: Gpu) -> float:
    """FSDP2 adds the gradients of a microbatch to those of all before it, whole and in the type in which they are reduced. On
    average of all microbatches: the first one finds none."""
    if not numbers or num_passes < 2 or asked.recipe.schedule not in WITH_BUBBLE:
        return 0.0
    precision = PRECISIONS[asked.recipe.precision]
    kept = "f32" if precision.weight_bytes == 4 else "bf16"
    fresh = Operand("bf16" if precision.computes else kept, (numbers,))
    call = Call("add_", (Operand(kept, (numbers,)), fresh), (Operand(kept, (numbers,)),))
    return seconds_of_call(call, chip) * (num_passes - 1) / num_passes


# -- links ------------------------------------------------------------------------------------------------------------------------


def _on_links(config: ModelConfig, asked: Configuration, links: Interconnect, num_gathered: int, num_reduced: int) -> float:
    """Weights are gathered and gradients reduced so often, layer by layer; one group of GPUs does one thing at a time. What forward
    needs is there before it ends, and what backward needs is gathered after that."""
    by_group = Counter[tuple[int, bool]]()
    for has_experts, count in config.kinds_of_layers().items():
        for shared in shared_weights(config, has_experts, asked):
            spent = num_gathered * gather_seconds(asked, shared, links) + num_reduced * reduce_seconds(asked, shared, links)
            by_group[shared.ranks, shared.are_adjacent] += count * spent  # type: ignore[assignment]
    # Backward needs the last layer's weights while they are still there.
    return float(max(by_group.values(), default=0.0) * max(0, config.layers - 1) / config.layers)


def _waiting(config: ModelConfig, asked: Configuration, links: Interconnect, is_back: bool) -> float:
    """In every pass, with nothing to compute meanwhile: the embedding and the head are gathered together, then the first layer; the
    gradients of both are reduced when there are no others any more. The next pass gathers after that."""
    first = shared_weights(config, config.has_experts(0), asked)[:1]
    if not first or (is_back and asked.recipe.lora):
        return 0.0
    both = (first[0], root_of(first[0], config, asked))
    return sum(reduce_seconds(asked, shared, links) if is_back else gather_seconds(asked, shared, links) for shared in both)


def _copying(config: ModelConfig, asked: Configuration, chip: Gpu, is_back: bool) -> float:
    """Of weights that were gathered and gradients that are reduced, by the stream that computes."""
    total = 0.0
    for has_experts, count in config.kinds_of_layers().items():
        for shared in shared_weights(config, has_experts, asked):
            spread, cut = copies_of(asked, shared)
            calls = [spread] * gathers(asked, is_back) + [cut] * (is_back and not asked.recipe.lora)
            total += count * seconds_of_calls(calls, chip)
    return total * max(0, config.layers - 1) / config.layers
