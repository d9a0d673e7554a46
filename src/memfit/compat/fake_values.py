"""What only data can tell, assumed, so that a step on fake tensors runs to its end.

A fake tensor has no data: reading a value off it (``norm.item()``, or clipping that refuses gradients that are not finite) raises
in the middle of a step. While one of our trackers is active such a reading is answered instead: nothing is infinite, nothing is
empty. Real tensors are never touched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from memfit.record.torch_private import fake_implementations

_READINGS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_originals: dict[Any, Any] = {}
_num_active = 0


def assume_values() -> None:
    """From now on, until as many calls of ``stop_assuming_values``."""
    global _num_active
    _num_active += 1
    if _num_active == 1:
        for op in _READINGS:
            if op in fake_implementations:
                _originals[op] = fake_implementations[op]
                fake_implementations[op] = _read_or_assume


def stop_assuming_values() -> None:
    global _num_active
    _num_active -= 1
    if _num_active == 0:
        fake_implementations.update(_originals)


def _read_or_assume(fake_mode: Any, op: Any, tensor: torch.Tensor) -> Any:
    try:
        return _originals[op](fake_mode, op, tensor)
    except DataDependentOutputException:
        if tensor.dtype is torch.bool:
            return False
        return 0.0 if tensor.is_floating_point() else 0j if tensor.is_complex() else 1
