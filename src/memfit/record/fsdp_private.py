"""Everything the recorder uses of FSDP's internals, for both engines. Known to hold for torch 2.10 to 2.13.

None of this imports FSDP by itself: a run that never imported it cannot be using it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def loaded(name: str) -> Any | None:
    """A module of torch that the run has imported, else ``None``."""
    return sys.modules.get(name)


def is_fsdp_root(module: nn.Module) -> bool:
    """Was FSDP of either kind applied to this module?"""
    fsdp2, fsdp1 = (
        loaded("torch.distributed.fsdp._fully_shard._fully_shard"),
        loaded("torch.distributed.fsdp.fully_sharded_data_parallel"),
    )
    return (fsdp2 is not None and isinstance(module, fsdp2.FSDPModule)) or (
        fsdp1 is not None and isinstance(module, fsdp1.FullyShardedDataParallel)
    )


def parameter_groups(root: nn.Module) -> Iterator[Any]:
    """FSDP2's parameter groups below ``root``, each once; a grouped unit has several modules and one group."""
    fsdp = loaded("torch.distributed.fsdp._fully_shard._fully_shard")
    if fsdp is None:
        return
    seen: set[int] = set()
    for module in root.modules():
        if not isinstance(module, fsdp.FSDPModule):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # one group a state before torch 2.12
            groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
        for group in groups:
            if id(group) not in seen:
                seen.add(id(group))
                yield group


def unsharded_parameters(group: Any) -> Iterator[tuple[torch.Tensor, nn.Module, str]]:
    """The full parameters of an FSDP2 group that exist right now, each with its module and name in it."""
    for managed in group.fsdp_params:
        info = managed._module_info
        for tensor in (*managed.all_gather_outputs, getattr(managed, "_unsharded_param", None)):
            if tensor is not None:
                yield tensor, info.module, info.param_name


def flat_handles(root: nn.Module) -> Iterator[Any]:
    """FSDP1's handles of flat parameters below ``root``."""
    fsdp = loaded("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp is None:
        return
    for module in root.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel) and module._handle is not None:
            yield module._handle


def sharded_parameters(root: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters of a model that either FSDP keeps sharded."""
    for group in parameter_groups(root):
        yield from (managed.sharded_param for managed in group.fsdp_params)
    for handle in flat_handles(root):
        if handle.uses_sharded_strategy:
            yield getattr(handle.flat_param, "_local_shard", handle.flat_param)


def unsharded_flat_parameters(handle: Any) -> Iterator[torch.Tensor]:
    """The full flat parameters of an FSDP1 handle, in low and in full precision, where they exist."""
    if handle.uses_sharded_strategy:
        for name in ("_full_param_padded", "_full_prec_full_param_padded"):
            tensor = getattr(handle.flat_param, name, None)
            if tensor is not None:
                yield tensor
