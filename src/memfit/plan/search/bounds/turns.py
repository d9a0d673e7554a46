"""What FSDP2 never does at the same time, however fast the links are.

::

    forward         all gathers, one by one ──> the head. Where the host reads how many tokens each expert gets, the next layer's
                    experts are gathered after that, and after what the host does around the units between
    going back      the head ──> per unit: its gradients are copied together when those of the unit before are reduced.
                    Experts with GPUs of their own are gathered when those of the layer after are reduced, and computed then
    in a pipeline   the first microbatch waits for weights; a stage that has the gradients of all reduces them layer by layer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memfit.engines import ENGINES
from memfit.hardware import Gpu
from memfit.job import Configuration
from memfit.job.states import is_sharded, shared_weights
from memfit.ledger import Phase
from memfit.models import ModelConfig
from memfit.plan.search.bounds.layer_time import LayerSeconds
from memfit.plan.search.bounds.sharing import Unit, gather_seconds, gathers, root_of, unit_of, units_of
from memfit.timing import Interconnect


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layers that are alike, in one pass."""

    count: int
    num_computed: int
    """In how many of them gradients are computed."""
    has_experts: bool
    seconds: LayerSeconds

    @property
    def going_back(self) -> float:
        return self.seconds.backward + self.seconds.recompute

    def seconds_of(self, is_back: bool) -> float:
        return self.going_back if is_back else self.seconds.forward


def is_known(asked: Configuration) -> bool:
    """True where the order is known in which weights are gathered and gradients reduced."""
    return asked.recipe.engine == "fsdp2" and is_sharded(asked) and not asked.recipe.lora and asked.recipe.offload == "none"


def in_turns(
    config: ModelConfig,
    asked: Configuration,
    layers: Sequence[Layers],
    head: tuple[float, float],
    chip: Gpu,
    links: Interconnect,
) -> tuple[float, float]:
    """Forward and backward of one pass by what waits for one another; 0 where the order is not known."""
    if not is_known(asked):
        return 0.0, 0.0
    units = {each.has_experts: units_of(config, each.has_experts, asked, chip, links) for each in layers}
    root = unit_of(asked, root_of(shared_weights(config, layers[0].has_experts, asked)[0], config, asked), chip, links)
    forward = _forward_in_turns(asked, layers, units, root.gather) + head[0]
    backward = sum(_back_in_turns(asked, each, units[each.has_experts], is_last=each is layers[-1]) for each in layers)
    return forward, head[1] + backward + root.cut + root.reduce


def _forward_in_turns(asked: Configuration, layers: Sequence[Layers], units: dict[bool, list[Unit]], root_seconds: float) -> float:
    last, own = layers[-1], units[layers[-1].has_experts]
    gathered = root_seconds + sum(each.count * unit.gather for each in layers for unit in units[each.has_experts])
    if len(own) == 1:
        return gathered + last.seconds.forward
    if asked.recipe.ep == 1:
        return gathered
    before = sum(each.count * each.seconds.forward for each in layers[:-1])
    turn = max(own[1].gather + _host_between_experts(asked), last.seconds.forward)
    return max(gathered, root_seconds + max(own[1].gather, before) + (last.count - 1) * turn)


def _back_in_turns(asked: Configuration, layers: Layers, units: Sequence[Unit], *, is_last: bool) -> float:
    count, others, again = layers.count, units[0], int(gathers(asked, True))
    if len(units) == 1:
        copied = count * (others.cut + others.reduce)
        # One gather may be under way before the last layer is through, and another one is not needed.
        linked = others.cut + count * others.reduce + max(0, count - 2) * again * others.gather
        return max(copied, linked) + layers.going_back if is_last else copied
    experts, seconds = units[1], layers.seconds
    # What a layer computes again comes after all that the layer behind it does, on the stream that computes.
    computed = seconds.recompute + seconds.experts_backward
    gathered = again * (experts.gather + experts.spread) + seconds.experts_again + seconds.experts_backward
    between = max(others.cut + others.reduce, others.cut + again * experts.spread + computed, gathered)
    return count * (experts.cut + experts.reduce) + (count - 1) * between + computed + others.cut + others.reduce


def _host_between_experts(asked: Configuration) -> float:
    """What the host does from one layer's experts to the next one's: around both units of a layer, before them and after."""
    tasks = ENGINES["fsdp2"].tasks
    before, after = tasks[Phase.PRE_FORWARD], tasks[Phase.POST_FORWARD]
    has_work = asked.recipe.pp == 1 and gathers(asked, True)
    return 2 * before.seconds + 2 * (after.seconds if has_work or after.idle_seconds is None else after.idle_seconds)


def around_a_rank(
    config: ModelConfig, asked: Configuration, layers: Layers, stages_a_rank: int, count: int, chip: Gpu, links: Interconnect
) -> float:
    """What a rank of ``count`` such layers has in addition: the embedding is gathered, the first microbatch waits for weights, and
    gradients are reduced layer by layer when a stage has those of all microbatches."""
    units = units_of(config, layers.has_experts, asked, chip, links)
    if not units:
        return 0.0
    reducing = count * units[0].reduce
    if not is_known(asked):
        return reducing
    first = shared_weights(config, layers.has_experts, asked)[0]
    numbers = config.vocab * config.dim // asked.recipe.tp
    gathering = gather_seconds(asked, replace(first, numbers=numbers, moved=numbers), links)
    waiting = sum(unit.gather for unit in units) - layers.seconds.forward
    if len(units) > 1 and asked.recipe.ep > 1:
        waiting = units[1].gather + _host_between_experts(asked) - layers.seconds.forward
    copied = sum(unit.cut for unit in units) + sum(unit.reduce for unit in units[1:])
    # While another stage computes, one layer of a stage may be gathered, and one reduced.
    return gathering + reducing + (count - stages_a_rank) * (max(0.0, waiting) + copied)
