"""How weights are initialised, where the installed torch does it in another way than the one that is predicted.

Since 2.13 ``trunc_normal_`` draws again what lies outside, and holds masks as large as the weight while it does. Before, everything
happened in place (seen on an H200 with 2.11). The masks are gone when training begins, but the segments that they lay in are not:
for an 8B model that is two gibibytes of what is reserved.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.defaults import INITIALISATION, TRUNCATED_NORMAL
from memfit.torch_compat.patches import Patches

DRAWN_AGAIN_SINCE = (2, 13)

DRAWN_ONCE = (
    "numbers of trunc_normal_ on the host that lie outside are drawn again in a real run, as often as it takes: shuffled data may "
    "come in another order (a torch.manual_seed after the model is made settles it)"
)

Truncate = Callable[..., torch.Tensor]


def install(patches: Patches, target: Target, assumptions: Assumptions) -> None:
    if not hasattr(INITIALISATION, TRUNCATED_NORMAL):
        return
    if target.torch < DRAWN_AGAIN_SINCE:
        patches.replace(INITIALISATION, TRUNCATED_NORMAL, _truncated_in_place)
        return

    def say(original: Truncate) -> Truncate:
        def truncate(tensor: torch.Tensor, *args: float, generator: torch.Generator | None = None) -> torch.Tensor:
            if tensor.device.type == "cpu":
                assumptions.add(DRAWN_ONCE)
            return original(tensor, *args, generator=generator)

        return truncate

    patches.wrap(INITIALISATION, TRUNCATED_NORMAL, say)


def _truncated_in_place(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Takes no memory, and draws one number for each element, as torch did."""
    with torch.no_grad():
        return tensor.uniform_(-1, 1, generator=generator).clamp_(min=a, max=b)
