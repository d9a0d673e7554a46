"""FSDP2, ``fully_shard``: each parameter is a DTensor of its own, and a unit's parameters are gathered together.

::

    hooks.py       unsharding, resharding and reducing, seen while a run is recorded
    wrapping.py    fully_shard on every unit and on the model; on the phantom, cut for one rank
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memfit.engines.engine import Engine, Hook, HostTask, WrapConfig
from memfit.ledger import Category, Phase

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from memfit.torch_compat.patches import Patches

TASK = HostTask(seconds=620e-6, idle_seconds=150e-6)
"""12 layers sharded by FSDP2 take 35 milliseconds longer than 12 others. A task that finds nothing to do, as most do in a pipeline,
whose weights stay whole, was not measured by itself: 72 of them add 10 milliseconds or less to a step of a pipeline
(``f_pp_fsdp_3`` beside ``f_pp_1f1b_3``), 34 in ``fsdp2_zero2`` about 20."""


class Fsdp2(Engine):
    name = "fsdp2"
    title = "FSDP2"
    gathers_units = goes_with_others = repeats_steps = True
    tasks = dict.fromkeys((Phase.PRE_FORWARD, Phase.POST_FORWARD, Phase.PRE_BACKWARD, Phase.POST_BACKWARD), TASK)
    categories = (
        Category.SHARDED_PARAMETER,
        Category.UNSHARDED_PARAMETER,
        Category.SHARDED_GRADIENT,
        Category.UNSHARDED_GRADIENT,
    )

    def hooks(self) -> Mapping[str, Hook]:
        from memfit.engines.fsdp2.hooks import patch
        from memfit.torch_compat.fsdp import PARAMETER_GROUPS

        return {PARAMETER_GROUPS: lambda groups, patches, reporter: patch(self, groups, patches, reporter)}

    def sharded_parameters(self, root: nn.Module) -> Iterator[torch.Tensor]:
        from memfit.torch_compat.fsdp import parameter_groups

        for group in parameter_groups(root):
            yield from (managed.sharded_param for managed in group.fsdp_params)

    def install(self, patches: Patches) -> None:
        from memfit.engines.fsdp2.wrapping import install

        install(patches.because("FSDP2 cuts parameters for every rank: once is enough"))

    def refused(self, config: WrapConfig) -> Iterator[str]:
        precision = config.precision_words
        if precision.keep_low_precision_grads:
            yield "FSDP2 gives gradients in the parameters' own type: keep_low_precision_grads needs engine='fsdp1'"
        if precision.buffer_dtype is not None:
            yield "FSDP2 does not touch buffers: buffer_dtype needs engine='fsdp1', or cast them with model.to() before"

    def wrap(self, config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        from memfit.engines.fsdp2.wrapping import wrap

        return wrap(config, model, units, mesh)
