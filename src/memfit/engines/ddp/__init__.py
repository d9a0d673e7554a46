"""DDP, ``DistributedDataParallel``: every rank holds the whole model, and gradients are reduced bucket by bucket.

::

    wrapping.py    DistributedDataParallel around the model; on the phantom, with a reducer in Python
    replicas.py    DataParallel on the phantom: one process that drives several GPUs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from memfit.engines.engine import Engine, WrapConfig
from memfit.ledger import Category

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from memfit.torch_compat.patches import Patches


class Ddp(Engine):
    name = "ddp"
    title = "DDP"
    shards = has_mixed_precision = wraps_meta_models = False
    categories = (Category.ALL_REDUCE,)

    def is_wrapper(self, root: nn.Module) -> bool:
        from torch.nn.parallel import DistributedDataParallel

        return isinstance(root, DistributedDataParallel)

    def install(self, patches: Patches) -> None:
        from memfit.engines.ddp.wrapping import install

        install(patches.because("DistributedDataParallel without its C++"))

    def refused(self, config: WrapConfig) -> Iterator[str]:
        precision = config.precision_words
        if getattr(config.mixed_precision, "output_dtype", None) is not None:
            yield "DDP leaves outputs in the type they are computed in: output_dtype needs engine='fsdp2'"
        if config.strategy.name != "NO_SHARD":
            yield f"DDP shards nothing: {config.strategy.name} needs engine='fsdp2' or 'fsdp1'"
        if precision.param_dtype or precision.reduce_dtype or precision.buffer_dtype:
            yield "DDP has no mixed precision of its own: use torch.autocast around forward, or engine='fsdp2'"
        if config.cpu_offload.offload_params:
            yield "DDP keeps parameters on the GPU: CPUOffload(offload_params=True) needs engine='fsdp2' or 'fsdp1'"
        if config.backward_prefetch is not None and config.backward_prefetch.name == "BACKWARD_POST":
            yield "DDP gathers no parameters that could be prefetched: BACKWARD_POST needs engine='fsdp2' or 'fsdp1'"

    def without_reduction(self, model: nn.Module) -> AbstractContextManager[Any]:
        from torch.nn.parallel import DistributedDataParallel

        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()

    def wrap(self, config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
        from memfit.engines.ddp.wrapping import wrap

        return wrap(config, model, mesh)
