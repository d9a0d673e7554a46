"""FSDP1, ``FullyShardedDataParallel``: the parameters of a unit are one flat tensor.

::

    hooks.py       unsharding, resharding and reducing, seen while a run is recorded
    wrapping.py    one FullyShardedDataParallel around every unit and around the model; the other ranks' answers on the phantom
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memfit.engines.engine import Engine, Hook, HostTask, UnitTensor, WrapConfig
from memfit.ledger import Category, Phase

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from memfit.torch_compat.patches import Patches

TASK = HostTask(seconds=340e-6, idle_seconds=150e-6)
"""Of which a layer has five: 12 layers take 22.6 milliseconds longer. One that finds nothing to do is taken to cost what FSDP2's
does."""


class Fsdp1(Engine):
    name = "fsdp1"
    title = "FSDP1"
    tasks = dict.fromkeys((Phase.PRE_FORWARD, Phase.POST_FORWARD, Phase.PRE_BACKWARD, Phase.POST_BACKWARD), TASK)
    categories = (
        Category.SHARDED_PARAMETER,
        Category.UNSHARDED_PARAMETER,
        Category.SHARDED_GRADIENT,
        Category.UNSHARDED_GRADIENT,
    )
    wrapper_level = "_fsdp_wrapped_module"

    def hooks(self) -> Mapping[str, Hook]:
        from memfit.engines.fsdp1.hooks import patch
        from memfit.torch_compat.fsdp import FSDP1_RUNTIME

        return {FSDP1_RUNTIME: lambda runtime, patches, reporter: patch(self, runtime, patches, reporter)}

    def sharded_parameters(self, root: nn.Module) -> Iterator[torch.Tensor]:
        from memfit.torch_compat.fsdp import flat_handles

        for handle in flat_handles(root):
            if handle.uses_sharded_strategy:
                yield getattr(handle.flat_param, "_local_shard", handle.flat_param)

    def unit_tensors(self, root: nn.Module) -> Iterator[UnitTensor]:
        from memfit.torch_compat.fsdp import flat_handles

        for handle in flat_handles(root):
            category = Category.SHARDED_PARAMETER if handle.uses_sharded_strategy else Category.PARAMETER
            for shard in (getattr(handle.flat_param, "_local_shard", None), handle.flat_param):
                if shard is not None:
                    yield UnitTensor(shard, category, handle._fully_sharded_module, "flat_param")

    def install(self, patches: Patches) -> None:
        from memfit.engines.fsdp1.wrapping import install

        install(patches.because("what FSDP1 asks the other ranks"))

    def refused(self, config: WrapConfig) -> Iterator[str]:
        if getattr(config.mixed_precision, "output_dtype", None) is not None:
            yield "FSDP1 leaves outputs in the type they are computed in: output_dtype needs engine='fsdp2'"

    def options_giving_memory(self, give: Callable[[nn.Module], None]) -> Mapping[str, Any]:
        return {"param_init_fn": give}

    def wrap(self, config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        from memfit.engines.fsdp1.wrapping import wrap

        return wrap(config, model, units, mesh)
