"""What one training step computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model on the meta device, and what one forward pass on the GPU is."""

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]
    """Forward, of the model as it was sharded, on data that is on the GPU."""
