"""What only data can tell, assumed, so that a step on fake tensors runs to its end.

A fake tensor has no data: reading a value off it (``norm.item()``, or clipping that refuses gradients that are not finite) raises
in the middle of a step. While one of our trackers is active such a reading is answered instead: nothing is infinite, nothing is
empty. Real tensors are never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.fake_tensors import DataDependentOutputException, fake_implementations
from memfit.torch_compat.patches import Patches

_READINGS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_patches = Patches("MemTracker")
_num_active = 0


def assume_values() -> None:
    """From now on, until as many calls of ``stop_assuming_values``."""
    global _num_active
    _num_active += 1
    if _num_active == 1:
        _patches.because("a value that is read off a fake tensor is assumed")
        for op in _READINGS:
            if op in fake_implementations:
                _patches.replace_item(fake_implementations, op, _reading_or_assuming(fake_implementations[op]))


def stop_assuming_values() -> None:
    global _num_active
    _num_active -= 1
    if _num_active == 0:
        _patches.undo()


def _reading_or_assuming(read: Callable[..., Any]) -> Callable[..., Any]:
    def read_or_assume(fake_mode: Any, op: Any, tensor: torch.Tensor) -> Any:
        try:
            return read(fake_mode, op, tensor)
        except DataDependentOutputException:
            if tensor.dtype is torch.bool:
                return False
            return 0.0 if tensor.is_floating_point() else 0j if tensor.is_complex() else 1

    return read_or_assume
