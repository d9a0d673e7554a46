"""Running statistics of norms: counted in forward, and not once more when a unit is computed again.

::

    forward          | batch norm ──> running_mean, running_var, num_batches_tracked
    computed again   | batch norm ──> spare tensors that are never read

While a norm trains, what it returns follows from its batch alone, so that spare tensors change nothing of what it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

_FORWARDS: Final = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward, nn.InstanceNorm1d.forward)
"""Of torch's own norms: all batch norms share one, as do instance norms. A norm with another forward may read what it counts."""

_NAMES: Final = ("running_mean", "running_var", "num_batches_tracked")


class Statistics:
    """Those of a unit's norms that can be spared."""

    def __init__(self, unit: nn.Module) -> None:
        self._norms = [module for module in unit.modules() if type(module).forward in _FORWARDS and "forward" not in vars(module)]
        self._spare: dict[tuple[int, str], Tensor] = {}

    def tensors(self) -> Iterator[Tensor]:
        """What would be counted twice now."""
        return (norm._buffers[name] for _, norm, name in self._counted())  # type: ignore[misc]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What runs inside counts into spare tensors."""
        counted = [(norm, name, norm._buffers[name]) for _, norm, name in self._counted()]
        for number, norm, name in self._counted():
            norm._buffers[name] = self._spare_for(number, name, norm._buffers[name])
        try:
            yield
        finally:
            for norm, name, own in counted:
                norm._buffers[name] = own

    def _counted(self) -> Iterator[tuple[int, nn.Module, str]]:
        for number, norm in enumerate(self._norms):
            if norm.training:  # in evaluation it reads what it has counted, and counts nothing
                yield from ((number, norm, name) for name in _NAMES if norm._buffers.get(name) is not None)

    def _spare_for(self, number: int, name: str, own: Tensor | None) -> Tensor:
        assert own is not None
        spare = self._spare.get((number, name))
        if spare is None or spare.device != own.device or spare.dtype != own.dtype:
            spare = self._spare[number, name] = torch.zeros_like(own)
        return spare
