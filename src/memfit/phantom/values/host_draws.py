"""The host's random numbers go on as they would in a real run.

A model that is initialised on the host draws a number for each of its elements, and what is drawn next, the order of shuffled data
for one, depends on how many were drawn before. The elements are not there, so the numbers are drawn and thrown away. Up to
``MOST_DRAWS`` of them: a model larger than that would take longer to draw than to predict.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.dispatch import without_modes

aten = torch.ops.aten

FILLING: Final = frozenset((aten.uniform_.default, aten.normal_.default, aten.random_.default))
"""They draw a number for each element, in order: a large tensor draws as several small ones do."""
_MAKING: Final = {"aten::rand": aten.uniform_.default, "aten::randn": aten.normal_.default}
"""What makes a tensor and fills it like one of these."""

MOST_DRAWS: Final = 2**28
"""In one prediction: about two seconds."""
_CHUNK: Final = 2**16
_LAST: Final = 16
"""Normal numbers are drawn in groups of 16, and a last group that is not whole is drawn again."""

STOPPED: Final = (
    f"the host's random numbers were drawn as in a real run up to {MOST_DRAWS:,} of them: shuffled data may come in another order"
)


class HostDraws:
    """Draws what operators on host tensors without data would."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._left = MOST_DRAWS

    def fill(self, func: Any, tensor: torch.Tensor, args: Any, kwargs: dict[str, Any]) -> None:
        """For one of ``FILLING``, on a tensor of the host."""
        self._draw(func, tensor.numel(), tensor.dtype, args, kwargs)

    def make(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """For whatever has made a tensor of the host."""
        fill = _MAKING.get(func._schema.name)
        if fill is not None:
            generator = {name: value for name, value in kwargs.items() if name == "generator"}
            self._draw(fill, math.prod(args[0]), kwargs.get("dtype") or torch.get_default_dtype(), (), generator)

    def _draw(self, func: Any, count: int, dtype: torch.dtype, args: Any, kwargs: dict[str, Any]) -> None:
        if count > self._left:
            self._left = 0
            self._assumptions.add(STOPPED)
            return
        self._left -= count
        with without_modes(), torch.no_grad():
            thrown_away = torch.empty(min(count, _CHUNK + _LAST), dtype=dtype, device="cpu")
            while count >= _CHUNK + _LAST:
                func(thrown_away[:_CHUNK], *args, **kwargs)
                count -= _CHUNK
            if count:
                func(thrown_away[:count], *args, **kwargs)
