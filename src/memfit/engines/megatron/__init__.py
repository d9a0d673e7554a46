"""Megatron-core: flat buffers of parameters and gradients, main parameters, the distributed optimizer. Its own Python does all of
it, schedules of pipelines and dispatchers of experts included; memfit listens.

::

    hooks.py       reducing and gathering, and which tensors are buffers and main parameters, seen while a run is recorded

Scripts apply it; memfit does not. Kernels of apex that it imports are in ``phantom/libraries/apex.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memfit.engines.engine import Engine, Hook
from memfit.ledger import Category

if TYPE_CHECKING:
    from torch import nn


class Megatron(Engine):
    name = "megatron"
    title = "Megatron-core"
    is_applied = False
    goes_with_others = True
    categories = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)

    def hooks(self) -> Mapping[str, Hook]:
        from memfit.engines.megatron.hooks import PATCHES

        return {name: functools.partial(patch, self) for name, patch in PATCHES.items()}

    def axis_groups(self, modules: Sequence[nn.Module]) -> Mapping[str, Sequence[int]]:
        from memfit.engines.megatron.hooks import axis_groups

        return axis_groups()

    def is_wrapper(self, root: nn.Module) -> bool:
        return type(root).__module__.startswith("megatron.core.distributed.") and hasattr(root, "module")
