"""AdamW whose state is in eight bits, as bitsandbytes keeps it: the same tensors, and about the same bytes moved in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_BLOCK: Final = 256
"""Numbers that share a scale."""
_SMALLEST: Final = 4096
"""Smaller weights have their state in float32."""


class AdamW8bit(torch.optim.Optimizer):
    """``bitsandbytes.optim.AdamW8bit`` for predictions: memory and time are its own, what it computes is not."""

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        self._codes: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                own, gradient = _local(weight), _local(weight.grad)
                if not self.state[weight]:
                    self.state[weight] = self._state_of(own)
                # The kernel reads and writes weights and state once, and makes nothing beside them.
                own.add_(gradient.to(own.dtype))
                self.state[weight]["first"].copy_(self.state[weight]["second"])

    def _state_of(self, weight: Tensor) -> dict[str, Any]:
        if weight.numel() < _SMALLEST:
            return {name: torch.zeros_like(weight, dtype=torch.float32) for name in ("first", "second")}
        if not self._codes:
            self._codes = {f"codes_of_{name}": torch.zeros(256, device=weight.device) for name in ("first", "second")}
        blocks = -(-weight.numel() // _BLOCK)
        state = {name: torch.zeros_like(weight, dtype=torch.uint8) for name in ("first", "second")}
        return (
            state | self._codes | {f"scales_of_{name}": torch.zeros(blocks, device=weight.device) for name in ("first", "second")}
        )


def _local(tensor: Tensor) -> Tensor:
    """This GPU's part of a sharded tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
