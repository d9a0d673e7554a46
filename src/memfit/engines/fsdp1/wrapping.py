"""FSDP1: one ``FullyShardedDataParallel`` around every unit and around the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import CustomPolicy

from memfit.engines.engine import WrapConfig
from memfit.errors import ConfigError
from memfit.torch_compat.fsdp import optimizer_states, shard_metadata, sharded_tensors
from memfit.torch_compat.patches import Patches


def wrap(config: WrapConfig, model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh) -> nn.Module:
    if mesh.device_type == "cpu":
        raise ConfigError("FSDP1 needs an accelerator: on the CPU use engine='fsdp2'")
    prefetch = config.backward_prefetch
    options: dict[str, Any] = {
        "sharding_strategy": config.strategy.to_torch(),
        "auto_wrap_policy": CustomPolicy(set(units).__contains__),
        "mixed_precision": config.precision_words.to_torch(),
        "backward_prefetch": prefetch.to_torch() if prefetch is not None else None,
        "cpu_offload": config.cpu_offload.to_torch(),
        "device_id": torch.device(mesh.device_type, torch.accelerator.current_device_index()),
        "use_orig_params": True,
        "device_mesh": mesh,  # with one, sharded state dicts hold DTensors, as FSDP2's do
    }
    return FullyShardedDataParallel(model, **options | dict(config.engine_options))


# -- on the phantom: what it asks the other ranks when it makes state dicts, answered without them ---------------------------
#
# With ``use_orig_params``, a rank has no optimizer state for parameters of which its shard holds nothing; the others tell it that
# they have. And each rank says which part of a flat parameter it holds. The fake world's other ranks say what this one says, so
# both answers are made here. Also asked: where a group's tensors live, which the fake backend, being of every device, cannot
# tell.


def install(patches: Patches) -> None:
    for module, name, make in (
        (optimizer_states(), "_map_param_key_to_optim_keys", _with_states_of_others),
        (sharded_tensors(), "build_global_metadata", _with_shards_of_others),
    ):
        patches.replace(module, name, make(getattr(module, name)))
    patches.replace(dist.distributed_c10d, "_get_pg_default_device", lambda group=None: torch.device("cuda"))


def _with_states_of_others(original: Callable[..., Any]) -> Callable[..., Any]:
    def map_keys(state: Any, group: Any, param_of_key: Any, names_of_param: Any, infos: Any, merge_keys: bool = False) -> Any:
        keys, own = original(state, group, param_of_key, names_of_param, infos, merge_keys)
        if merge_keys:
            key = optimizer_states()._OptimStateKey
            names = (tuple(names_of_param[param]) for param in param_of_key.values() if param.requires_grad)
            keys = sorted({*keys, *(key(each, True) for each in names if each[0] in infos)})
        return keys, own

    return map_keys


def _with_shards_of_others(original: Callable[..., Any]) -> Callable[..., Any]:
    def build_global_metadata(said: list[Any], *args: Any, **kwargs: Any) -> Any:
        mine = said[dist.get_rank()]
        if len(said) > 1 and mine is not None and len(mine.size) == 1:
            mine.tensor_properties.requires_grad = False  # a fake tensor's view requires grad even where grad is off
            mine.shards_metadata = _even_shards(mine.shards_metadata[0], mine.size[0], len(said))
            said = [mine]
        return original(said, *args, **kwargs)

    return build_global_metadata


def _even_shards(mine: Any, total: int, ranks: int) -> list[Any]:
    """The parts of a flat tensor that was cut into pieces of one size, the last perhaps shorter."""
    rank = dist.get_rank()
    size = mine.shard_offsets[0] // rank if rank else mine.shard_sizes[0]
    where = str(mine.placement).partition("/")[2]
    return [
        shard_metadata([other * size], [min(size, total - other * size)], f"rank:{other}/{where}")
        for other in range(ranks)
        if other * size < total
    ]
