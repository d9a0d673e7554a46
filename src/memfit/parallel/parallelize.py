"""``parallelize``: a model becomes this rank's share of it."""

from __future__ import annotations

from torch import nn

from memfit.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from memfit.fsdp.sharding import device_type
from memfit.fsdp.units import Checkpointing
from memfit.parallel.config import Parallelism
from memfit.parallel.layout import ModelLayout
from memfit.parallel.meshes import make_meshes
from memfit.parallel.model import Loss, ParallelModel
from memfit.parallel.splitting import ShardingWords, after_optimizer_step, split
from memfit.parallel.stages import part_of, stages_of_rank


def parallelize(
    model: nn.Module,
    parallelism: Parallelism,
    *,
    layout: ModelLayout,
    loss: Loss,
    strategy: ShardingStrategy | str = ShardingStrategy.FULL_SHARD,
    mixed_precision: MixedPrecision | None = None,
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
    checkpointing: Checkpointing = None,
    compile_blocks: bool = False,
) -> ParallelModel:
    """One rank's share of a model on many ranks, to be trained with torch's optimizers.

    ::

        shared = parallelize(model, Parallelism(tp=2, pp=2, microbatches=4), layout=layout, loss=loss)
        optimizer = torch.optim.AdamW(shared.parameter_groups())
        shared.forward_backward(tokens, labels)
        shared.clip_grad_norm_(1.0)
        optimizer.step()
        shared.after_step()

    What the axes leave of the world shards parameters, gradients and optimizer state as ``memfit.fsdp.shard`` does, with FSDP2; the
    words after ``loss`` are described there. The model is changed in place. One on the meta device stays there until each of
    ``parts`` is given memory: ``part.to_empty(device=...)``.
    """
    precision = mixed_precision or MixedPrecision()
    hidden_dtype = precision.param_dtype or next(model.parameters()).dtype
    words = ShardingWords(
        strategy=ShardingStrategy(strategy),
        mixed_precision=precision,
        backward_prefetch=backward_prefetch,
        checkpointing=checkpointing,
        compile_blocks=compile_blocks,
    )
    meshes = make_meshes(parallelism, device_type(model), has_experts=bool(layout.experts_of(model)))
    numbers = stages_of_rank(parallelism, meshes.pp.get_local_rank()) if meshes.pp is not None else [0]
    parts = [part_of(model, layout, number, parallelism.num_stages) for number in numbers]
    parts = [split(part, layout, parallelism, meshes, words) for part in parts]
    return ParallelModel(
        parts=parts,
        numbers=numbers,
        layout=layout,
        wanted=parallelism,
        meshes=meshes,
        loss=loss,
        hidden_dtype=hidden_dtype,
        after_step=after_optimizer_step(parts, parallelism),
    )
