"""Which GPUs share the weights of a model, and what each of them has.

::

    everything but experts     by tp and pp, and by the GPUs that the strategy names
    experts                    the same, unless they have a place of their own (ep, or tp): then all GPUs of a stage share them, and
                               those that hold the same experts shard each
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from memfit.choices import STRATEGIES, Split
from memfit.engines import ENGINES
from memfit.hardware import GPUS_PER_NODE
from memfit.models import ModelConfig, find_model

Inputs = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Weights of a layer that a group of GPUs gathers together."""

    numbers: int
    """When they are whole, on one GPU."""
    moved: int
    """So many go over the links: experts are cut one by one, and where there are fewer than GPUs, some send nothing but zeros."""
    ranks: int
    are_adjacent: bool
    """Do the GPUs follow one another?"""


def shared_weights(config: ModelConfig, has_experts: bool, inputs: Inputs) -> tuple[Shared, ...]:
    """Of one layer: those of everything but experts first. Empty where no weights are gathered unit by unit."""
    if not is_sharded(inputs):
        return ()
    ranks, are_adjacent = sharing_ranks(inputs)
    numbers = config.parameters_of_layer(config.layers - 1 if has_experts else 0)
    experts = config.experts_of_layer if has_experts else 0
    if not has_experts or not _have_own_place(inputs):
        moved = numbers - experts + _filled_up(experts, config.num_experts, ranks)
        return (Shared(numbers=numbers // inputs["tp"], moved=moved // inputs["tp"], ranks=ranks, are_adjacent=are_adjacent),)
    others = (numbers - experts) // inputs["tp"]
    found = [Shared(numbers=others, moved=others, ranks=ranks, are_adjacent=are_adjacent)]
    ep = inputs["ep"]
    holding = inputs["world_size"] // inputs["pp"] // ep
    if holding > 1:
        is_near = ep == 1 or holding * ep <= GPUS_PER_NODE
        moved = _filled_up(experts // ep, config.num_experts // ep, holding)
        found.append(Shared(numbers=experts // ep, moved=moved, ranks=holding, are_adjacent=is_near))
    return tuple(found)


def _filled_up(numbers: int, num_experts: int, ranks: int) -> int:
    """Of experts that are cut between GPUs, so that all parts are equal."""
    return numbers // num_experts * math.ceil(num_experts / ranks) * ranks if num_experts else numbers


def is_sharded(inputs: Inputs) -> bool:
    """Do GPUs gather the weights of each unit from one another?"""
    engine = ENGINES.get(inputs["engine"])
    return engine is not None and engine.gathers_units and sharing_ranks(inputs)[0] > 1


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


def numbers_of_a_gpu(inputs: Inputs) -> float:
    """Weights that one GPU keeps, on average of all."""
    config, strategy = find_model(inputs["model"]), STRATEGIES.get(inputs["strategy"])
    is_split = strategy is not None and strategy.split is Split.WORLD
    shards = inputs["world_size"] if is_split else inputs["tp"] * inputs["pp"] * sharing_ranks(inputs)[0]
    experts = config.num_expert_parameters if _have_own_place(inputs) else 0
    return float((config.num_parameters - experts) / shards + experts / inputs["world_size"])


def _have_own_place(inputs: Inputs) -> bool:
    return bool(inputs["ep"] > 1 or inputs["tp"] > 1)
