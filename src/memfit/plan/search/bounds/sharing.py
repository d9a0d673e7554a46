"""What GPUs that share a layer's weights do with them: gather, copy apart, copy together, reduce.

::

    weights of a layer ──> one unit, or two: experts with GPUs of their own are gathered and reduced by themselves
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from memfit.choices import PRECISIONS, STRATEGIES
from memfit.hardware import Gpu
from memfit.job import Configuration
from memfit.job.states import Shared, gathered_item_bytes, shared_weights
from memfit.models import ModelConfig
from memfit.timing import Interconnect
from memfit.timing.collectives import all_gather_seconds, reduce_scatter_seconds
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.prices import price


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What FSDP2 does with one unit's weights, in seconds: 0 of what it does not do."""

    gather: float
    spread: float
    """What was gathered is copied to where weights are whole."""
    cut: float
    """Gradients are copied to where they are reduced from."""
    reduce: float


def units_of(config: ModelConfig, has_experts: bool, asked: Configuration, chip: Gpu, links: Interconnect) -> list[Unit]:
    """Of a layer, experts with GPUs of their own last."""
    return [unit_of(asked, shared, chip, links) for shared in shared_weights(config, has_experts, asked)]


def unit_of(asked: Configuration, shared: Shared, chip: Gpu, links: Interconnect) -> Unit:
    spread, cut = copies_of(asked, shared)
    return Unit(
        gather=gather_seconds(asked, shared, links),
        spread=seconds_of_call(spread, chip),
        cut=seconds_of_call(cut, chip),
        reduce=reduce_seconds(asked, shared, links),
    )


def copies_of(asked: Configuration, shared: Shared) -> tuple[Call, Call]:
    """What was gathered lies rank by rank, and is copied to where weights are whole; gradients are copied to where they are reduced
    from."""
    precision = PRECISIONS[asked.recipe.precision]
    reduced = {2: "bf16", 4: "f32"}[precision.weight_bytes]
    fresh = "bf16" if precision.computes else reduced
    kind = {1: "f8", 2: "bf16", 4: "f32"}[gathered_item_bytes(asked)]
    spread = Call("fsdp::split_with_sizes_copy", (Operand(kind, (shared.numbers,)),), ())
    return spread, Call("fsdp::chunk_cat", (Operand(fresh, (shared.numbers,)),), (Operand(reduced, (shared.numbers,)),))


def gather_seconds(asked: Configuration, shared: Shared, links: Interconnect) -> float:
    return all_gather_seconds(float(shared.moved * gathered_item_bytes(asked)), shared.ranks, links, shared.are_adjacent)


def reduce_seconds(asked: Configuration, shared: Shared, links: Interconnect) -> float:
    size = shared.moved * PRECISIONS[asked.recipe.precision].weight_bytes
    return reduce_scatter_seconds(float(size), shared.ranks, links, shared.are_adjacent)


def gathers(asked: Configuration, is_back: bool) -> bool:
    """Are weights gathered, in forward or going back?"""
    strategy = STRATEGIES.get(asked.recipe.strategy)
    return not is_back or (strategy is not None and strategy.reshards)


def root_of(first: Shared, config: ModelConfig, asked: Configuration) -> Shared:
    """The embedding and the head, which the same GPUs share as a layer."""
    numbers = config.vocab * config.dim * (1 if config.tied else 2) // asked.recipe.tp
    return replace(first, numbers=numbers, moved=numbers)


def seconds_of_calls(calls: Sequence[Call], chip: Gpu) -> float:
    return sum(seconds_of_call(call, chip) for call in calls)


@lru_cache(maxsize=4096)
def seconds_of_call(call: Call, chip: Gpu) -> float:
    """Many candidates have the same calls."""
    return price(call, chip).seconds
