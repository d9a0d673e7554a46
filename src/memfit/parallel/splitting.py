"""A model, or a stage of it, over the ranks: in the order in which one thing must find the other."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from memfit.errors import ConfigError
from memfit.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy, shard
from memfit.fsdp.units import Checkpointing, checkpoint_units
from memfit.parallel.config import Parallelism
from memfit.parallel.layout import ModelLayout
from memfit.parallel.meshes import Meshes


@dataclass(frozen=True, kw_only=True)
class ShardingWords:
    """What ``memfit.fsdp.shard`` is asked for; each word is described there."""

    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
    mixed_precision: MixedPrecision = field(default_factory=MixedPrecision)
    backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE
    checkpointing: Checkpointing = None
    compile_blocks: bool = False

    def shards_nothing(self, meshes: Meshes) -> bool:
        """Is each rank alone with its share, in one precision? Then FSDP has nothing to do."""
        return meshes.shard.size() == 1 and self.mixed_precision.param_dtype is None


def split(part: nn.Module, layout: ModelLayout, wanted: Parallelism, meshes: Meshes, words: ShardingWords) -> nn.Module:
    """Float8 first, because it replaces modules; FSDP last, because it wants to see everything else."""
    if wanted.float8_row.recipe:
        to_float8(part, layout, wanted)
    if meshes.tp is not None:
        parallelize_module(part, meshes.tp, _styles(layout, part, wanted))
        layout.tell_shards(part, wanted.tp)
    if meshes.expert_shard is not None:
        for experts in layout.experts_of(part):
            _share_experts(experts, layout, meshes)
            if not words.shards_nothing(meshes) or meshes.expert_shard.size() > 1:
                fully_shard(experts, **_fsdp_options(meshes, words))
    blocks = [block for block in getattr(part, layout.blocks).children() if any(True for _ in block.parameters())]
    if words.compile_blocks:  # before anything is wrapped around them
        for block in blocks:
            block.compile()
    if words.shards_nothing(meshes):
        checkpoint_units(part, blocks, words.checkpointing)
        return part
    if not wanted.schedule_row.shards and meshes.pp is not None:
        raise ConfigError(
            f"{wanted.schedule} loses gradients where stages are sharded or compute in mixed precision: use another schedule, or a "
            "world of tp x pp ranks and one precision for all"
        )
    return shard(
        part,
        words.strategy,
        units=set(blocks).__contains__,
        mesh=meshes.shard,
        mixed_precision=words.mixed_precision,
        backward_prefetch=words.backward_prefetch,
        checkpointing=words.checkpointing,
    )


# -- experts -----------------------------------------------------------------------------------------------------------------------


def _share_experts(experts: nn.Module, layout: ModelLayout, meshes: Meshes) -> None:
    """Each rank keeps some of the experts."""
    if meshes.ep is None:
        return
    for name, weight in list(experts.named_parameters(recurse=False)):
        shared = distribute_tensor(weight, meshes.ep, [Shard(0)], src_data_rank=None)
        experts.register_parameter(name, nn.Parameter(shared))
    layout.share_experts(experts, meshes.ep.get_group())


def _fsdp_options(meshes: Meshes, words: ShardingWords) -> dict[str, Any]:
    precision = words.mixed_precision
    policy = MixedPrecisionPolicy(param_dtype=precision.param_dtype, reduce_dtype=precision.reduce_dtype, cast_forward_inputs=False)
    return {
        "mesh": meshes.expert_shard,
        "mp_policy": policy,
        "reshard_after_forward": words.strategy.reshards_after_forward,
    }


# -- float8 ------------------------------------------------------------------------------------------------------------------------


def _torchao() -> Any:
    try:
        import torchao.float8  # type: ignore[import-not-found]
    except ImportError as error:
        raise ConfigError("float8 needs the torchao package: pip install torchao") from error
    return torchao.float8


def to_float8(part: nn.Module, layout: ModelLayout, wanted: Parallelism) -> None:
    """Linear layers whose sizes the hardware takes become torchao's."""
    torchao, row = _torchao(), wanted.float8_row

    def is_wanted(module: nn.Module, name: str) -> bool:
        return (
            isinstance(module, nn.Linear) and not any(size % 16 for size in module.weight.shape) and layout.in_float8(module, name)
        )

    if row.gathers:
        config = torchao.Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    else:
        config = torchao.Float8LinearConfig.from_recipe_name(row.recipe)
    torchao.convert_to_float8_training(part, config=config, module_filter_fn=is_wanted)


def after_optimizer_step(parts: list[nn.Module], wanted: Parallelism) -> Callable[[], None]:
    """What float8 computes once for all weights when they have changed: their scales."""
    if not wanted.float8_row.gathers:
        return lambda: None
    precompute = _torchao().precompute_float8_dynamic_scale_for_fsdp

    def scale() -> None:
        for part in parts:
            precompute(part)

    return scale


def _styles(layout: ModelLayout, part: nn.Module, wanted: Parallelism) -> dict[str, ParallelStyle]:
    """Torch's styles; where weights are gathered in 8 bits, torchao's in place of those that know nothing of it."""
    styles = layout.styles_for(part)
    if not wanted.float8_row.gathers:
        return styles
    _torchao()
    from torchao.float8 import float8_tensor_parallel as theirs

    kinds = {ColwiseParallel: theirs.Float8ColwiseParallel, RowwiseParallel: theirs.Float8RowwiseParallel}
    linear = {name for name, module in part.named_modules() if type(module).__name__ == "Float8Linear"}
    found = {}
    for pattern, style in styles.items():
        kind = kinds.get(type(style)) if fnmatch.filter(linear, pattern) else None
        found[pattern] = style if kind is None else _as(kind, style)
    return found


def _as(kind: Any, style: Any) -> ParallelStyle:
    (taken,), (given,) = style.input_layouts, style.output_layouts
    made: ParallelStyle = kind(input_layouts=taken, output_layouts=given, use_local_output=style.use_local_output)
    return made
