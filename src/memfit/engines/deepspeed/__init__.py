"""DeepSpeed: ZeRO's partitions, buckets and master weights. Its own Python does all of it; memfit listens.

::

    hooks.py       gathering, releasing and reducing, and which tensors are master weights and buckets, seen while a run is recorded

What DeepSpeed would compile is replaced on the phantom in ``phantom/libraries/deepspeed.py``. Scripts apply it; memfit does not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memfit.engines.engine import Engine, Hook, UnitTensor
from memfit.ledger import Category

if TYPE_CHECKING:
    import torch
    from torch import nn


class DeepSpeed(Engine):
    name = "deepspeed"
    title = "DeepSpeed"
    is_applied = False
    categories = (
        Category.SHARDED_PARAMETER,
        Category.UNSHARDED_PARAMETER,
        Category.SHARDED_GRADIENT,
        Category.OPTIMIZER_STATE,
        Category.REDUCE_SCATTER,
    )

    def hooks(self) -> Mapping[str, Hook]:
        from memfit.engines.deepspeed.hooks import PATCHES

        return {name: functools.partial(patch, self) for name, patch in PATCHES.items()}

    def is_wrapper(self, root: nn.Module) -> bool:
        return type(root).__module__.startswith("deepspeed.runtime.") and hasattr(root, "module")

    def sharded_parameters(self, root: nn.Module) -> Iterator[torch.Tensor]:
        return (found.tensor for found in self.unit_tensors(root))

    def axis_groups(self, modules: Sequence[nn.Module]) -> Mapping[str, Sequence[int]]:
        """Those of a pipeline: DeepSpeed lays out stages, copies of the model and parts of tensors."""
        grids = [module._grid for module in modules if type(module).__module__ == "deepspeed.runtime.pipe.module"]
        if not grids:
            return {}
        grid: Any = grids[0]
        stages = [grid.stage_to_global(stage) for stage in range(grid.pipe_parallel_size)]
        return {"pp": stages, "dp": list(grid.dp_group), "tp": list(grid.slice_group)}

    def unit_tensors(self, root: nn.Module) -> Iterator[UnitTensor]:
        """A parameter of ZeRO's third stage is empty; its part is a tensor beside it."""
        if "deepspeed" not in sys.modules:
            return
        for module in root.modules():
            for name, parameter in module.named_parameters(recurse=False):
                part = getattr(parameter, "ds_tensor", None)
                if part is not None:
                    yield UnitTensor(part, Category.SHARDED_PARAMETER, module, name)
