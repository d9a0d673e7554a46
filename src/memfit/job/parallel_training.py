"""A recipe with more than data parallelism becomes a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist

from memfit.choices import STRATEGIES, Split
from memfit.fsdp import BackwardPrefetch
from memfit.hardware import GPUS_PER_NODE
from memfit.job.recipe import Recipe, dp_of
from memfit.job.training import (
    MAX_NORM,
    Batches,
    in_parts,
    make_tokens,
    make_transformer,
    materialised,
    mixed_precision_of,
    optimizer_of,
    settle,
)
from memfit.models.transformer.splitting import layout_of
from memfit.parallel import Parallelism, parallelize
from memfit.parallel.model import Loss
from memfit.regular import regular


def build_parallel_step(recipe: Recipe, longest: int = 0) -> Callable[[], None]:
    """Makes model, optimizer and data in the order of a training script; returns the function that does one step."""
    recipe = settle(recipe)
    model = make_transformer(recipe)
    shared = parallelize(
        model,
        parallelism_of(recipe, dist.get_world_size()),
        layout=layout_of(model),
        loss=_cross_entropy if recipe.pp > 1 or recipe.microbatches < 2 else _part_of_loss(recipe.microbatches),
        strategy=recipe.strategy,
        mixed_precision=mixed_precision_of(recipe),
        backward_prefetch=None if recipe.prefetch == "none" else BackwardPrefetch(recipe.prefetch),
        checkpointing=None if recipe.checkpointing == "none" else recipe.checkpointing,
        compile_blocks=recipe.compile == "blocks",
    )
    del model  # with what other stages have
    for part in shared.parts:
        materialised(part, "cuda")
        if recipe.compile == "model":
            part.compile()
    optimizer = optimizer_of(recipe.optimizer, shared.parameter_groups())
    num_parts, one_part = (1, recipe) if recipe.pp > 1 else in_parts(recipe)
    batches = Batches(lambda seq: make_tokens(replace(one_part, seq=seq)), recipe.seq, longest)

    def step() -> None:
        tokens = batches.next()
        for _ in range(num_parts):
            # Context parallelism cuts what it is given, so each pass gets its own.
            inputs, labels = (part.clone() if recipe.cp > 1 else part for part in (tokens[:, :-1], tokens[:, 1:]))
            shared.forward_backward(inputs, labels)
        shared.clip_grad_norm_(MAX_NORM)
        optimizer.step()
        shared.after_step()
        optimizer.zero_grad()

    return step if longest else regular(step)


def parallelism_of(recipe: Recipe, world_size: int) -> Parallelism:
    """The recipe's parallelism, as ``memfit.parallel`` takes it."""
    pipeline = {"schedule": recipe.schedule, "microbatches": recipe.microbatches} if recipe.pp > 1 else {}
    return Parallelism(
        tp=recipe.tp,
        pp=recipe.pp,
        cp=recipe.cp,
        ep=recipe.ep,
        replicas=_replicas(recipe, world_size),
        float8=recipe.float8,
        **pipeline,  # type: ignore[arg-type]
    )


def _replicas(recipe: Recipe, world_size: int) -> int:
    """Number of replicas of a hybrid strategy; by default the ranks of a node shard."""
    if STRATEGIES[recipe.strategy].split is not Split.NODE:
        return 1
    if recipe.mesh:
        return int(recipe.mesh[0])
    dp = dp_of(recipe, world_size)
    return max(1, dp // max(1, GPUS_PER_NODE // (recipe.tp * recipe.cp)))


def _part_of_loss(num_parts: int) -> Loss:
    """Scales a part's loss so that the gradients of all parts add up to that of the mean."""
    return lambda logits, labels: _cross_entropy(logits, labels) / num_parts


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
