"""Quasi-random numbers: torch computes them on the host from tables of any size, with operators that read them.

A host tensor above a size has no data in a prediction. Those of ``SobolEngine`` have, whatever their size: 1,500 dimensions take a
table of 10 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.quasirandom import SobolEngine

from memfit.phantom.tensors.mode import PhantomMode
from memfit.torch_compat.patches import Patches


def install_quasirandom(patches: Patches, mode: PhantomMode) -> None:
    for name in ("__init__", "draw", "fast_forward", "reset"):
        patches.wrap(SobolEngine, name, lambda original: _with_data(original, mode))


def _with_data(original: Callable[..., Any], mode: PhantomMode) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before, mode.largest_real_bytes = mode.largest_real_bytes, 2**63
        try:
            return original(*args, **kwargs)
        finally:
            mode.largest_real_bytes = before

    return call
