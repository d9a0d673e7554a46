"""The part of a model that a stage of a pipeline has.

::

    stage 0          embedding, some blocks         the embedding and the head count as a block each, so the first and the last
    stage 1 ...      some blocks                    stage have one block less where all cannot have equally many
    the last stage   some blocks, norm and head
"""

from __future__ import annotations

import copy

from torch import nn

from memfit.choices import layers_of_stages
from memfit.errors import ConfigError
from memfit.parallel.config import Parallelism
from memfit.parallel.layout import ModelLayout


def stages_of_rank(wanted: Parallelism, pp_rank: int) -> list[int]:
    """The numbers of the stages that a rank of the pipeline has."""
    return wanted.schedule_row.stages_of(pp_rank, wanted.pp)


def blocks_of_stages(num_blocks: int, num_stages: int) -> list[range]:
    """Which blocks each stage has: as equally many as can be, the embedding and the head counted as one each."""
    if num_blocks + 2 < 2 * num_stages:
        raise ConfigError(
            f"{num_blocks} blocks are too few for {num_stages} stages of a pipeline: the first and the last have the embedding and "
            "the head beside at least one block"
        )
    sizes = layers_of_stages(num_blocks, num_stages)
    starts = [sum(sizes[:stage]) for stage in range(num_stages + 1)]
    return [range(starts[stage], starts[stage + 1]) for stage in range(num_stages)]


def part_of(model: nn.Module, layout: ModelLayout, stage: int, num_stages: int) -> nn.Module:
    """A model without what other stages have. Modules are those of the model, not copies, and keep their names."""
    if num_stages == 1:
        return model
    blocks = getattr(model, layout.blocks)
    mine = blocks_of_stages(len(blocks), num_stages)[stage]
    part = copy.copy(model)
    part._modules = dict(model._modules)
    kept = nn.ModuleList()
    for name, block in list(blocks.named_children())[mine.start : mine.stop]:
        kept.add_module(name, block)
    setattr(part, layout.blocks, kept)
    elsewhere = (layout.first if stage > 0 else ()) + (layout.last if stage < num_stages - 1 else ())
    for name in elsewhere:
        setattr(part, name, None)
    return part
