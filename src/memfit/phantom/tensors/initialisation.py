"""How weights are initialised, where the installed torch does it in another way than the one that is predicted.

Since 2.13 ``trunc_normal_`` draws again what lies outside, and holds masks as large as the weight while it does. Before, everything
happened in place (seen on an H200 with 2.11). The masks are gone when training begins, but the segments that they lay in are not:
for an 8B model that is two gibibytes of what is reserved.
"""

from __future__ import annotations

import torch

from memfit.phantom.target import Target
from memfit.torch_compat.defaults import INITIALISATION, TRUNCATED_NORMAL
from memfit.torch_compat.patches import Patches

DRAWN_AGAIN_SINCE = (2, 13)


def install(patches: Patches, target: Target) -> None:
    if target.torch < DRAWN_AGAIN_SINCE and hasattr(INITIALISATION, TRUNCATED_NORMAL):
        patches.replace(INITIALISATION, TRUNCATED_NORMAL, _truncated_in_place)


def _truncated_in_place(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """What matters is what it takes: nothing."""
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator).clamp_(min=a, max=b)
