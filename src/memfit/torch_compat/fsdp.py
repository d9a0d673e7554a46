"""FSDP's insides, both engines', and what torch's distributed checkpoint is made of.

What only looks at a run never imports FSDP by itself: a run that has not imported it cannot be using it. What applies FSDP to a
model asks for its parts when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch import nn

from memfit.torch_compat.versions import need, need_in

PARAMETER_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
FSDP1_RUNTIME = "torch.distributed.fsdp._runtime_utils"
STATE_DICTS = "torch.distributed.checkpoint.state_dict"
"""Modules in which FSDP and distributed checkpoint do their work."""

STATE_DICT_WORK = ("_get_model_state_dict", "_get_optim_state_dict", "_load_model_state_dict", "_load_optim_state_dict")
"""The functions in which state dicts are made and loaded."""


def need_everything() -> None:
    """Asks for each part that this file uses only where FSDP is used."""
    hooks = ("pre_forward", "post_forward", "pre_backward", "post_backward", "wait_for_unshard", "reshard", "_prefetch_unshard")
    need_in(PARAMETER_GROUPS, *(f"FSDPParamGroup.{name}" for name in hooks))
    need_in("torch.distributed.fsdp._fully_shard._fsdp_common", "TrainingState.POST_BACKWARD")
    need_in("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule._get_fsdp_state")
    need_in(FSDP1_RUNTIME, "_unshard", "_reshard", "_reduce_grad")
    need_in(STATE_DICTS, *STATE_DICT_WORK)
    need_in("torch.distributed._state_dict_utils", "_gather_state_dict", "_offload_state_dict_to_cpu")
    need_in("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "checkpoint_wrapper")
    need_in("torch.distributed.fsdp._optim_utils", "_map_param_key_to_optim_keys", "_OptimStateKey")
    need_in("torch.distributed._shard.sharded_tensor.api", "build_global_metadata")
    need_in("torch.distributed._shard.metadata", "ShardMetadata")


def loaded(name: str) -> Any | None:
    """A module that the run has imported to its end, else ``None``: of modules that import each other one is there too early."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


# -- looking at a run ----------------------------------------------------------------------------------------------------------


def is_fsdp_root(module: nn.Module) -> bool:
    """Was FSDP of either kind applied to this module?"""
    fsdp2, fsdp1 = (
        loaded("torch.distributed.fsdp._fully_shard._fully_shard"),
        loaded("torch.distributed.fsdp.fully_sharded_data_parallel"),
    )
    return (fsdp2 is not None and isinstance(module, fsdp2.FSDPModule)) or (
        fsdp1 is not None and isinstance(module, fsdp1.FullyShardedDataParallel)
    )


def groups_of_unit(unit: Any) -> list[Any]:
    """FSDP2's groups of one unit: one, or none where it has no parameters of its own; several with per-parameter meshes."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # one group a state before torch 2.12
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


def parameter_groups(root: nn.Module) -> Iterator[Any]:
    """FSDP2's parameter groups below ``root``, each once; a grouped unit has several modules and one group."""
    fsdp = loaded("torch.distributed.fsdp._fully_shard._fully_shard")
    if fsdp is None:
        return
    seen: set[int] = set()
    for module in root.modules():
        if not isinstance(module, fsdp.FSDPModule):
            continue
        for group in groups_of_unit(module):
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


def unsharded_tensors(group: Any) -> list[torch.Tensor]:
    """The tensors alone, in the same order: cheap."""
    found: list[torch.Tensor] = []
    for managed in group.fsdp_params:
        found += managed.all_gather_outputs
        whole = getattr(managed, "_unsharded_param", None)
        if whole is not None:
            found.append(whole)
    return found


def unsharded_gradients(group: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The full gradients of an FSDP2 group that exist right now, each with the shard of the parameter that it is for."""
    for managed in group.fsdp_params:
        whole = getattr(managed, "_unsharded_param", None)
        for gradient in (getattr(managed, "unsharded_accumulated_grad", None), None if whole is None else whole.grad):
            if gradient is not None:
                yield gradient, managed.sharded_param


def facts_of_units(modules: Sequence[nn.Module]) -> dict[int, tuple[Any, ...]]:
    """What FSDP2 keeps of units apart from the modules' attributes, and what decides a call: switches, whether gradients are
    reduced for one, and which shards, buffers and full gradients are there. By the unit's place among ``modules``."""
    fsdp = loaded("torch.distributed.fsdp._fully_shard._fully_shard")
    if fsdp is None:
        return {}
    return {place: _facts_of_unit(module) for place, module in enumerate(modules) if isinstance(module, fsdp.FSDPModule)}


def _facts_of_unit(unit: Any) -> tuple[Any, ...]:
    state = unit._get_fsdp_state()
    facts: list[tuple[Any, ...]] = [_facts(state), _facts(state._state_ctx), _facts(state._comm_ctx)]
    for group in groups_of_unit(unit):
        facts.append(_facts(group))
        for managed in group.fsdp_params:
            whole = getattr(managed, "_unsharded_param", None)
            accumulated = getattr(managed, "unsharded_accumulated_grad", None)
            facts.append((managed.sharded_state, accumulated is None, whole is None or whole.grad is None))
    return tuple(facts)


def _facts(holder: Any) -> tuple[tuple[str, Any], ...]:
    """Of each attribute: a plain value, a length, or whether it is there."""
    return tuple((name, _fact(value)) for name, value in vars(holder).items())


def _fact(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, Enum, torch.dtype)):
        return value
    return len(value) if isinstance(value, (list, tuple, dict, set)) else True


def holds_unsharded_gradients(modules: Iterable[nn.Module]) -> bool:
    """Does FSDP2 add up full gradients for one of these modules, out of sight of its parameters?"""
    fsdp = loaded("torch.distributed.fsdp._fully_shard._fully_shard")
    units = (module for module in modules if fsdp is not None and isinstance(module, fsdp.FSDPModule))
    return any(True for unit in units for group in groups_of_unit(unit) for _ in unsharded_gradients(group))


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


def flat_gradient_shard(handle: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What is left of an FSDP1 handle's gradient on this rank, with the shard of the parameter that it is for."""
    shard = getattr(handle.flat_param, "_saved_grad_shard", None)
    return None if shard is None else (shard, handle.flat_param._local_shard)


# -- applying it ---------------------------------------------------------------------------------------------------------------


def checkpoint_wrapper(module: nn.Module, **kwargs: Any) -> nn.Module:
    """A module whose forward is checkpointed, and whose parameters keep their names."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

    wrapped: nn.Module = need(wrappers, "checkpoint_wrapper")(module, **kwargs)
    return wrapped


def gather_state_dict(state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """What distributed checkpoint itself uses; its own options leave out FULL on the CPU of every rank, or on the GPU of rank 0."""
    from torch.distributed import _state_dict_utils

    gathered: dict[str, Any] = need(_state_dict_utils, "_gather_state_dict")(state, **kwargs)
    return gathered


def offload_state_dict(state: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """The same, for moving one to the host."""
    from torch.distributed import _state_dict_utils

    offloaded: dict[str, Any] = need(_state_dict_utils, "_offload_state_dict_to_cpu")(state, **kwargs)
    return offloaded


def has_mesh(model: nn.Module) -> bool:
    """Was FSDP1 given a mesh?"""
    return getattr(model, "_device_mesh", None) is not None


def prefetch_after_backward(unit: Any) -> None:
    """The unit asks for the next one's parameters when its own have just been given back.

    ``post_backward`` reshards when all gradients are there and before it reduces them: the one moment between the two.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param_group

    after_backward = need(need(_fsdp_common, "TrainingState"), "POST_BACKWARD")
    prefetch = need(_fsdp_param_group.FSDPParamGroup, "_prefetch_unshard")
    need(_fsdp_param_group.FSDPParamGroup, "reshard")
    for group in groups_of_unit(unit):
        group.reshard = _with_prefetch(group, group.reshard, after_backward, prefetch)


def _with_prefetch(
    group: Any, original: Callable[[], None], after_backward: Any, prefetch: Callable[[Any, str], None]
) -> Callable[[], None]:
    def reshard() -> None:
        original()
        if group._training_state == after_backward and group._post_forward_indices:
            before = group.comm_ctx.post_forward_order[: group._post_forward_indices.pop()]
            # An outer unit ends after the units in it, which have had their backward.
            waiting = (other for other in reversed(before) if other._training_state != after_backward)
            if (following := next(waiting, None)) is not None:
                prefetch(following, "backward")

    return reshard


# -- where the other ranks are asked -------------------------------------------------------------------------------------------


def fsdp2_parameters() -> Any:
    """The module in which FSDP2 cuts a parameter into the shards of all ranks."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    return _fsdp_param


def optimizer_states() -> Any:
    """The module in which FSDP1 learns from the other ranks whose optimizer state there is."""
    from torch.distributed.fsdp import _optim_utils

    return _optim_utils


def sharded_tensors() -> Any:
    """The module in which ranks tell each other which part of a tensor they hold."""
    from torch.distributed._shard.sharded_tensor import api

    return api


def shard_metadata(offsets: list[int], sizes: list[int], placement: str) -> Any:
    """One part of a sharded tensor."""
    from torch.distributed._shard.metadata import ShardMetadata

    return ShardMetadata(offsets, sizes, placement=placement)
