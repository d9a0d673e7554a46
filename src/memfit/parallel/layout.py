"""What a model says about itself, so that it can be split."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """How a model is made of blocks, and how each module of it is split. Names are as in ``model.named_modules()``."""

    blocks: str = "blocks"
    """The list of blocks, which the stages of a pipeline share out. Its place is a child of the model."""
    first: tuple[str, ...] = ()
    """Children of the model that the first stage alone has. On others they are ``None``, and forward takes hidden states."""
    last: tuple[str, ...] = ()
    """Children of the model that the last stage alone has."""
    width: int = 0
    """The size of a hidden state, for what goes from stage to stage."""
    outputs: int = 0
    """The size of what the model gives for each token: logits."""
    tensor: Mapping[str, ParallelStyle] = field(default_factory=dict)
    """Torch's styles, by name or pattern: ``{"blocks.*.mlp.up": ColwiseParallel(), ...}``. Hidden states go from block to block as
    shards of the sequence, and logits come out as shards of the vocabulary, as local tensors."""
    experts: str = ""
    """A pattern for the modules whose parameters have one row for each expert."""
    share_experts: Callable[[nn.Module, ProcessGroup], None] = lambda module, group: None
    """Tells such a module which ranks have the other experts."""
    in_float8: Callable[[nn.Module, str], bool] = lambda module, name: True
    """Is a linear layer computed in float8, where float8 is asked for?"""
    tell_shards: Callable[[nn.Module, int], None] = lambda part, num_shards: None
    """Tells the model, or a stage of it, into how many shards of the sequence hidden states are cut."""
    tell_positions: Callable[[nn.Module, Tensor], None] | None = None
    """Tells the model the positions of this rank's tokens; ``None`` where it cannot be told, and so has no context parallelism."""

    def styles_for(self, part: nn.Module) -> dict[str, ParallelStyle]:
        """Those for modules that the part has: torch warns of others."""
        names = [name for name, _ in part.named_modules()]
        return {pattern: style for pattern, style in self.tensor.items() if fnmatch.filter(names, pattern)}

    def experts_of(self, part: nn.Module) -> list[nn.Module]:
        return [module for name, module in part.named_modules() if self.experts and fnmatch.fnmatch(name, self.experts)]
