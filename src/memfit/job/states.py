"""Weights, gradients and optimizer state of one GPU, from sizes alone: which GPUs share them, and what each of them has.

::

    everything but experts     by tp and pp, and by the GPUs that the strategy names
    experts                    the same, unless they have a place of their own (ep, or tp): then all GPUs of a stage share them, and
                               those that hold the same experts shard each
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memfit.choices import OPTIMIZERS, PRECISIONS, SCHEDULES, STRATEGIES, Split, layers_of_stages
from memfit.engines import ENGINES
from memfit.hardware import GPUS_PER_NODE
from memfit.job.configuration import Configuration
from memfit.models import ModelConfig, find_model


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Weights of a layer that a group of GPUs gathers together."""

    numbers: int
    """Bytes on one GPU while they are whole."""
    moved: int
    """Bytes that go over the links. Experts are cut one by one; with fewer experts than GPUs, some GPUs send only padding."""
    ranks: int
    are_adjacent: bool
    """True if the GPUs have consecutive ranks."""


def shared_weights(config: ModelConfig, has_experts: bool, asked: Configuration) -> tuple[Shared, ...]:
    """The gathered weights of one layer, experts last. Empty if no weights are gathered unit by unit."""
    if not is_sharded(asked):
        return ()
    ranks, are_adjacent = sharing_ranks(asked)
    numbers = config.parameters_of_layer(config.layers - 1 if has_experts else 0)
    experts = config.experts_of_layer if has_experts else 0
    if not has_experts or not _have_own_place(asked):
        moved = numbers - experts + _filled_up(experts, config.num_experts, ranks)
        return (Shared(numbers=numbers // asked.recipe.tp, moved=moved // asked.recipe.tp, ranks=ranks, are_adjacent=are_adjacent),)
    others = (numbers - experts) // asked.recipe.tp
    found = [Shared(numbers=others, moved=others, ranks=ranks, are_adjacent=are_adjacent)]
    ep = asked.recipe.ep
    holding = asked.world_size // asked.recipe.pp // ep
    if holding > 1:
        is_near = ep == 1 or holding * ep <= GPUS_PER_NODE
        moved = _filled_up(experts // ep, config.num_experts // ep, holding)
        found.append(Shared(numbers=experts // ep, moved=moved, ranks=holding, are_adjacent=is_near))
    return tuple(found)


def _filled_up(numbers: int, num_experts: int, ranks: int) -> int:
    """The number of experts, padded so that all GPUs have equal parts."""
    return numbers // num_experts * math.ceil(num_experts / ranks) * ranks if num_experts else numbers


def is_sharded(asked: Configuration) -> bool:
    """True if GPUs gather the weights of each unit from one another."""
    engine = ENGINES.get(asked.recipe.engine)
    return engine is not None and engine.gathers_units and sharing_ranks(asked)[0] > 1


def sharing_ranks(asked: Configuration) -> tuple[int, bool]:
    """Number of GPUs that share weights, gradients and optimizer state besides tp and pp; true if their ranks are consecutive."""
    strategy = STRATEGIES.get(asked.recipe.strategy)
    if strategy is None or strategy.split is Split.NOTHING:
        return 1, True
    group = asked.world_size // (asked.recipe.tp * asked.recipe.pp)
    if strategy.split is Split.NODE:
        usual = max(1, GPUS_PER_NODE // asked.recipe.tp)
        group = min(group, int(asked.recipe.mesh[-1]) * asked.recipe.cp if asked.recipe.mesh else usual)
    return group, asked.recipe.tp == 1 or group * asked.recipe.tp <= GPUS_PER_NODE


def trained_numbers_of_a_gpu(asked: Configuration) -> float:
    """Number of trained weights per GPU, on average: all of them, or those of the adapters."""
    if not asked.recipe.lora:
        return numbers_of_a_gpu(asked)
    return adapter_numbers(find_model(asked.recipe.model), asked) / sharing_ranks(asked)[0]


def adapter_numbers(config: ModelConfig, asked: Configuration) -> int:
    """Number of weights of all LoRA adapters, at least: those on queries and values, which every choice of layers has."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if config.latent is not None:
        queries, keys = config.dim, 0
    return config.layers * asked.recipe.lora * (2 * config.dim + queries + keys)


def _frozen_bytes_of_a_gpu(asked: Configuration) -> float:
    """Bytes of frozen weights per GPU. In four bits, all but embedding and head, at least."""
    config, precision = find_model(asked.recipe.model), PRECISIONS[asked.recipe.precision]
    if asked.recipe.quantize == "none":
        return numbers_of_a_gpu(asked) * (2 if precision.computes else precision.weight_bytes)
    whole = config.vocab * config.dim * (1 if config.tied else 2)
    return whole * 4 + (config.num_parameters - whole) / 2


def numbers_of_a_gpu(asked: Configuration) -> float:
    """Number of weights per GPU, on average."""
    config, strategy = find_model(asked.recipe.model), STRATEGIES.get(asked.recipe.strategy)
    is_split = strategy is not None and strategy.split is Split.WORLD
    shards = asked.world_size if is_split else asked.recipe.tp * asked.recipe.pp * sharing_ranks(asked)[0]
    experts = config.num_expert_parameters if _have_own_place(asked) else 0
    return float((config.num_parameters - experts) / shards + experts / asked.world_size)


def _have_own_place(asked: Configuration) -> bool:
    return bool(asked.recipe.ep > 1 or asked.recipe.tp > 1)


# -- bytes ------------------------------------------------------------------------------------------------------------------------


def state_bytes(asked: Configuration) -> int:
    """Weights and optimizer state of one GPU."""
    if asked.recipe.offload == "params":
        return 0
    row = OPTIMIZERS[asked.recipe.optimizer]
    size = row.state_bytes or PRECISIONS[asked.recipe.precision].weight_bytes
    return weight_bytes(asked) + int(trained_numbers_of_a_gpu(asked) * row.state_copies * size)


def gradient_bytes(asked: Configuration) -> int:
    """Gradients of one GPU, when backward is over."""
    trained = trained_numbers_of_a_gpu(asked) * PRECISIONS[asked.recipe.precision].weight_bytes
    return 0 if asked.recipe.offload == "params" else int(trained)


def least_state_bytes(asked: Configuration) -> int:
    """The least memory of a named model on each GPU, without activations."""
    return state_bytes(asked) + max(gradient_bytes(asked), whole_weight_bytes(asked))


def share_of_smallest_rank(config: ModelConfig, asked: Configuration) -> float:
    """The smallest share of all layers that a rank of the pipeline has."""
    if asked.recipe.pp == 1:
        return 1.0
    stages = SCHEDULES[asked.recipe.schedule].stages_a_rank
    return min(layers_of_stages(config.layers, asked.recipe.pp * stages)) * stages / config.layers


def weight_bytes(asked: Configuration) -> int:
    """Weights of one GPU, in the types in which they are kept."""
    if asked.recipe.lora:
        adapters = trained_numbers_of_a_gpu(asked) * PRECISIONS[asked.recipe.precision].weight_bytes
        return int(_frozen_bytes_of_a_gpu(asked) + adapters)
    return int(numbers_of_a_gpu(asked) * PRECISIONS[asked.recipe.precision].weight_bytes)


def whole_weight_bytes(asked: Configuration) -> int:
    """Bytes gathered in forward and kept for backward."""
    strategy = STRATEGIES.get(asked.recipe.strategy)
    if strategy is None or strategy.split is Split.NOTHING or strategy.reshards or sharing_ranks(asked)[0] == 1:
        return 0
    return int(numbers_of_a_rank(find_model(asked.recipe.model), asked) * gathered_item_bytes(asked))


def numbers_of_a_rank(config: ModelConfig, asked: Configuration) -> float:
    """Number of weights in a rank's layers, before data parallelism shards them. Distributed experts stay distributed."""
    numbers = sum(count * _of_layer(config, has_experts, asked) for has_experts, count in config.kinds_of_layers().items())
    return numbers * share_of_smallest_rank(config, asked)


def _of_layer(config: ModelConfig, has_experts: bool, asked: Configuration) -> int:
    return sum(shared.numbers for shared in shared_weights(config, has_experts, asked))


def gathered_item_bytes(asked: Configuration) -> int:
    """Bytes of a weight while it is whole."""
    precision = PRECISIONS[asked.recipe.precision]
    return 1 if asked.recipe.float8 != "none" else 2 if precision.computes else precision.weight_bytes
